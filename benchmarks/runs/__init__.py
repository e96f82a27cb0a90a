"""Parts of benchmarks of many runs: a process for each, a queue, and a file of results that is continued."""
