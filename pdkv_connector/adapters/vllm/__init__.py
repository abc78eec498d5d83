"""The vLLM side: plugin, connector facade, scheduler half, worker half; `compat` holds what versions change."""
