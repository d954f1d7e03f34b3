"""The paper's second application: Beijing's air-quality stations and their zones."""
