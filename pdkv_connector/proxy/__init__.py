"""Small reference router: sends each OpenAI request to a prefill and a decode server, at the same time or in turn."""
