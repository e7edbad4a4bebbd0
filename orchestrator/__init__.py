"""What runs on the head node: grid, plan, schedule, driver, ledger, tracking, results. design.md §5."""
