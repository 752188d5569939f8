"""OPERATE: one module per noun, with the verbs and views that CLI, server and dashboard share."""
