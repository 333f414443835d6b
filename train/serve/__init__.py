"""An HTTP server that speaks as OpenAI's does, and scores what the model says."""
