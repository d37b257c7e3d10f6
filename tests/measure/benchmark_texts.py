"""Short outputs in the formats that the programs really print; the numbers are ours unless a test says otherwise."""

H100 = "NVIDIA H100 80GB HBM3"
HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"


def nccl(rows: str, *, device: str = H100, hosts: tuple[str, ...] = ("n1",), each: int = 8, name: str = "all_reduce_perf", more: str = "") -> str:
    """A table of nccl-tests over `each` GPUs of every host."""
    ranks = [
        f"#  Rank {host * each + gpu:2d} Group  0 Pid  {100 + gpu:5d} on {label:>10} device {gpu:2d} [0000:{gpu:02x}:00] {device}"
        for host, label in enumerate(hosts)
        for gpu in range(each)
    ]
    options = "# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
    return "\n".join([more, f"# Collective test starting: {name}", options, "#", "# Using devices", *ranks, "#", HEAD, rows])


def row(size: int, algbw: float, busbw: float, wrong: str = "0", *, inplace: float | None = None, redop: str = "sum", root: str | None = "-1") -> str:
    """One line of the table; root None gives the older layout."""
    time_us = size / algbw / 1e3 if algbw else 20.0
    start = f"{size:12d}  {size // 4:12d}     float  {redop:>6}" + (f"  {root:>6}" if root else "")
    return f"{start}  {time_us:7.1f}  {algbw:6.2f}  {busbw:6.2f}  {wrong:>5}  {time_us:7.1f}  {algbw:6.2f}  {inplace or busbw:6.2f}  {wrong:>5}"


GIB = 2**30
HEALTHY = "\n".join([row(2**20, 22.8, 39.9), row(GIB, 264.9, 463.6), row(16 * GIB, 275.5, 482.1)])
FOOTER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 251.3\n#"

BENCH = """
Environment:
- software: torch=2.7.0+cu126, cuda=12.6, nccl=(2, 26, 2)
- hardware: _CudaDeviceProperties(name='NVIDIA H200', major=9, minor=0, total_memory=143166MB, multi_processor_count=132)

The average bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|    1MiB |  39.93GBps |  22.82GBps |
|   16GiB | 480.10GBps | 274.34GBps |
"""

MAMF = """
** Dtype: torch.bfloat16

** Platform/Device info:
- Linux n1 5.15.0
- _CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9, minor=0, total_memory=81079MB)

Tried {shapes} shapes => the best outcomes were:
mean:   {mean} TFLOPS @ 2048x2048x13312 (MxNxK)
median: {median} TFLOPS @ 2048x2048x13312 (MxNxK)
max:    {top} TFLOPS @ 1024x9216x4096 (MxNxK)
"""

NVBANDWIDTH = """nvbandwidth Version: v0.8
Built from Git version: v0.8

CUDA Runtime Version: 12080
CUDA Driver Version: 12080
Driver Version: 570.86.10

Device 0: NVIDIA H100 80GB HBM3 (00000000:04:00)
Device 1: NVIDIA H100 80GB HBM3 (00000000:05:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2         3
 0     55.21     55.30     {slow}     55.25

SUM host_to_device_memcpy_ce 221.0

Waived:
"""

GPU_BURN = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0a)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-0b)
Initialized device 0 with 81251 MB of memory (80493 MB available, using 72443 MB of it), using FLOATS
11.7%  proc'd: 2947 (17124 Gflop/s) - 2664 (17063 Gflop/s)   errors: 0 - 0   temps: 56 C - 63 C
\tSummary at:   Sat Sep 25 17:10:59 UTC 2021

100.0%  proc'd: 24838 (17031 Gflop/s) - 23976 (16950 Gflop/s)   errors: 0 - {errors}   temps: 62 C - 70 C
Killing processes with SIGTERM (soft kill)
done

Tested 2 GPUs:
\tGPU 0: OK
\tGPU 1: {verdict}
"""

FRYER = """Detected GPU #0: "NVIDIA H100 80GB HBM3" (0a-0b)
Using precision(s):  BF16
""" + "".join(
    f"GPU #{gpu}:  {speed} Gflops/s (min: {speed - 900}.00, max: {speed + 900}.00, dev: {speed}.00)\n"
    "         Temperature: 60.00C (min: 50.00, max: 66.00)\n         Throttling HW: false, Thermal SW: false, Thermal HW: false\n"
    for gpu, speed in enumerate([731000, 728000, 733000, 630000])
)

FIO = """fio --name=randread --directory=/data --ioengine={engine} --direct={direct} --rw=randread --bs=4k --numjobs=16 --iodepth=32
randread: (g=0): rw=randread, bs=(R) 4096B-4096B, (W) 4096B-4096B, (T) 4096B-4096B, ioengine={engine}, iodepth=32
...
fio-3.36
Starting 16 processes

randread: (groupid=0, jobs=16): err= 0: pid=4021: Mon Jan  5 10:00:00 2026
  read: IOPS={iops}, BW=1006MiB/s (1055MB/s)(118GiB/120003msec)
    slat (nsec): min=1200, max=90000, avg=2500.00, stdev=800.00
    clat (usec): min=40, max=9000, avg=1980.00, stdev=300.00
     lat (usec): min=44, max=9010, avg=1983.00, stdev=300.00
    clat percentiles (usec):
     |  1.00th=[  437],  5.00th=[ 1020], 10.00th=[ 1303], 20.00th=[ 1598],
     | 99.00th=[ 4621], 99.50th=[ 5145], 99.90th=[ 6521], 99.95th=[ 7046],

Run status group 0 (all jobs):
   READ: bw=1006MiB/s (1055MB/s), 1006MiB/s-1006MiB/s (1055MB/s-1055MB/s), io=118GiB (127GB), run=120003-120003msec
"""

PERFTEST = """---------------------------------------------------------------------------------------
                    RDMA_Write {both}BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Link type       : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]
 65536      5000             {rate}             {rate}\t\t   0.747
---------------------------------------------------------------------------------------
"""

LATENCY = """                    RDMA_Write Latency Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Link type       : IB
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.02           4.39         1.07               1.08        0.05            1.20                    4.39
"""

IPERF = """[ ID] Interval           Transfer     Bitrate         Retr
[  5]   0.00-10.00  sec  14.0 GBytes  12.0 Gbits/sec   10             sender
[  5]   0.00-10.04  sec  14.0 GBytes  12.0 Gbits/sec                  receiver
[  7]   0.00-10.00  sec  14.0 GBytes  12.0 Gbits/sec   11             sender
[  7]   0.00-10.04  sec  14.0 GBytes  12.0 Gbits/sec                  receiver
[SUM]   0.00-10.00  sec  28.0 GBytes  24.0 Gbits/sec   21             sender
[SUM]   0.00-10.04  sec  28.0 GBytes  23.4 Gbits/sec                  receiver
"""

OSU = """# OSU MPI-CUDA Bandwidth Test v7.2
# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)
# Size      Bandwidth (MB/s)
1                       1.01
4194304             24310.55
"""

BABEL = """BabelStream
Version: 5.0
Implementation: CUDA
Running kernels 100 times
Precision: double
Array size: {array} MB (=0.3 GB)
Using CUDA device NVIDIA H100 80GB HBM3
Function    MBytes/sec  Min (sec)   Max         Average
Copy        {rate}.310  0.00018     0.00026     0.00019
Triad       {rate}.569  0.00027     0.00035     0.00028
"""

PROFTESTER = """Skipping CreateDcgmGroups() since DCGM validation is disabled
Worker 0:0[1004]: TensorEngineActive: generated ???, dcgm 0.000 (250362.2 gflops)
Worker 0:0[1004]: TensorEngineActive: generated ???, dcgm 0.000 (253109.4 gflops)
Worker 0:0[1004]: TensorEngineActive: generated ???, dcgm 0.000 (252676.7 gflops)
"""

DEEPSPEED = """
---- Performance of all_reduce on 8 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
1.0 GB               268435456x4               4.05 ms              4242.0               3711.7
"""
