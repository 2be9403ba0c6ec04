"""One module per contender, with ``run(images, rounds, **options)``: train so many rounds, return when each ended.

Times are those of :data:`benchmarks.workload.now`. Nothing is evaluated.
"""
