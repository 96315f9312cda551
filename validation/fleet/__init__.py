"""Published split deployments, and their forecasts."""
