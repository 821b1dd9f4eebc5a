"""Deployment of engines: SageMaker archives and containers, Triton model repositories."""
