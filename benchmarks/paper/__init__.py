"""The paper's experiments: public tables, methods, scores, and a report beside the published figures."""
