"""What people look at: the report page and its plots. Reads orchestrator.results. design.md §2."""
