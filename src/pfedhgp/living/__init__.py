"""Models over time: rows that come later, rows that are taken out, forecasts, and rows that look wrong."""
