"""Settings: one table, and what is made from it.

| word | what it is |
|---|---|
| `Setting` (setting.py) | one entry of the table: name, type, default, values, help, option, key |
| `ModelSettings` (table.py) | the settings of a model, which `FederatedGP` takes |
| `Config` (config.py) | all settings of a fit from files, as a TOML file or the command line writes them |

What others call something near it: a `Spec` (model) is the model without data, `Structured` and `MeanField`
(inference) are the settings of an inference alone, a `Plan` (federation) is what server and clients compute
by, made from `ModelSettings`, and an `Agreement` (federation) is the part of a `Config` that the sites of a
federation share, with their columns.
"""
