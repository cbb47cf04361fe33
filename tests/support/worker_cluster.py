"""Two workers of one machine, as a cluster's JSON."""

WORKER_CLUSTER = {
    "devices": [
        {"name": f"/job:worker/task:{i}/device:CPU:0", "type": "CPU", "memory_bytes": 2**30,
         "properties": {"type": "CPU", "frequency": 2000, "numCores": 32, "bandwidth": 16000000}}
        for i in range(2)],
    "links": {"default": {"bandwidth_bytes_per_us": 1000, "latency_us": 100}},
    "op_overhead_us": 3.0}
