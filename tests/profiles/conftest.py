"""Real profiles outside the repository, and small ones that the tests write."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import pytest

from measured import DATA
from paleo_lite.errors import BadProfile, UnknownFormat
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.table import SCHEMA

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of published measurements, of tests marked `needs_data`."""
    return DATA


@pytest.fixture(scope="session")
def table_or_our_error():
    """Read a file by a reader and by recognition: both may refuse it in one sentence, neither may fail otherwise."""

    def check(path, reader):
        for read in (
            lambda: list(reader.batches(path, None)),
            lambda: list(open_profile(path).batches(("kernel", "duration_ns"))),
        ):
            try:
                batches = read()
            except (BadProfile, UnknownFormat) as error:
                assert str(error).startswith(str(path)) and len(str(error)) < 2000 and "\n" not in str(error)
                continue
            assert len({str(batch.schema) for batch in batches}) <= 1
            for batch in batches:
                batch.validate(full=True)
                known = [
                    field
                    for field in batch.schema
                    if not field.name.startswith("metric.") and field.name in SCHEMA.names
                ]
                assert all(field.type == SCHEMA.field(field.name).type for field in known)
                for name in {"duration_ns", "bytes", "flops"}.intersection(batch.schema.names):
                    values = batch.column(name).drop_null().to_pylist()
                    assert all(value >= 0 and math.isfinite(value) for value in values)

    return check


NVPROF_SCHEMA = """
CREATE TABLE StringTable(_id_ INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT NOT NULL UNIQUE);
CREATE TABLE Version(version INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(_id_ INTEGER PRIMARY KEY AUTOINCREMENT, copyKind INT NOT NULL,
  srcKind INT NOT NULL, dstKind INT NOT NULL, flags INT NOT NULL, bytes INT NOT NULL, start INT NOT NULL,
  end INT NOT NULL, deviceId INT NOT NULL, contextId INT NOT NULL, streamId INT NOT NULL,
  correlationId INT NOT NULL, runtimeCorrelationId INT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET(_id_ INTEGER PRIMARY KEY AUTOINCREMENT, value INT NOT NULL,
  bytes INT NOT NULL, start INT NOT NULL, end INT NOT NULL, deviceId INT NOT NULL, contextId INT NOT NULL,
  streamId INT NOT NULL, correlationId INT NOT NULL, flags INT NOT NULL, memoryKind INT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL(_id_ INTEGER PRIMARY KEY AUTOINCREMENT,
  cacheConfig BLOB NOT NULL, sharedMemoryConfig INT NOT NULL, registersPerThread INT NOT NULL, start INT NOT NULL,
  end INT NOT NULL, completed INT NOT NULL, deviceId INT NOT NULL, contextId INT NOT NULL, streamId INT NOT NULL,
  gridX INT NOT NULL, gridY INT NOT NULL, gridZ INT NOT NULL, blockX INT NOT NULL, blockY INT NOT NULL,
  blockZ INT NOT NULL, staticSharedMemory INT NOT NULL, dynamicSharedMemory INT NOT NULL,
  localMemoryPerThread INT NOT NULL, localMemoryTotal INT NOT NULL, correlationId INT NOT NULL, gridId INT NOT NULL,
  name INT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(_id_ INTEGER PRIMARY KEY AUTOINCREMENT, cbid INT NOT NULL,
  start INT NOT NULL, end INT NOT NULL, processId INT NOT NULL, threadId INT NOT NULL, correlationId INT NOT NULL,
  returnValue INT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MARKER(_id_ INTEGER PRIMARY KEY AUTOINCREMENT, flags INT NOT NULL,
  timestamp INT NOT NULL, id INT NOT NULL, objectKind INT NOT NULL, objectId BLOB NOT NULL, name INT NOT NULL,
  domain INT NOT NULL);
"""
"""nvprof's tables as CUPTI documents the activity records (no real file was found)."""


def write_nvprof(path: Path) -> Path:
    """A file as nvprof -o writes it, with one or two activities of each kind."""
    thread = (4321).to_bytes(4, "little") + (0x7F0012345678).to_bytes(8, "little")
    database = sqlite3.connect(path)
    database.executescript(NVPROF_SCHEMA)
    names = [
        "_ZN5cudnn6detail23implicit_convolve_sgemmIffLi128EEEvi",
        "ncclAllReduceRingLLKernel_sum_f32",
        "forward",
        "epoch",
    ]
    database.executemany("INSERT INTO StringTable VALUES(?, ?)", enumerate(names, 1))
    marks = "NULL, x'00', 1, ?, ?, ?, ?, 0, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?"
    kernel = f"INSERT INTO CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL VALUES({marks})"
    database.execute(kernel, (32, 1000, 3500, 3500, 7, 12544, 2, 1, 8, 8, 1, 4096, 512, 11, 1, 1))
    database.execute(kernel, (48, 4000, 9000, 9000, 9, 16, 1, 1, 256, 1, 1, 0, 0, 12, 2, 2))
    database.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES(NULL, 1, 1, 3, 0, 602112, 100, 900, 0, 1, 7, 10, 0)"
    )
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES(NULL, 0, 4096, 950, 960, 1, 1, 7, 13, 0, 2)")
    runtime = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES(NULL, ?, ?, ?, 4321, ?, ?, 0)"
    database.execute(runtime, (211, 90, 98, 0x12345678 - 2**32, 11))
    database.execute(runtime, (9999, 99, 100, 0x12345678, 12))
    marker = "INSERT INTO CUPTI_ACTIVITY_KIND_MARKER VALUES(NULL, ?, ?, ?, 2, ?, ?, 0)"
    database.execute(marker, (2, 50, 1, thread, 3))
    database.execute(marker, (1, 60, 2, thread, 4))
    database.execute(marker, (4, 9500, 1, thread, 0))
    database.execute(marker, (2, 9600, 3, thread, 3))
    database.commit()
    database.close()
    return path


@pytest.fixture(scope="session")
def nvprof_file(tmp_path_factory) -> Path:
    return write_nvprof(tmp_path_factory.mktemp("nvprof") / "run.nvvp")


def write_rocpd(path: Path) -> Path:
    """The kernels of ``rocprof.RocprofCsv``'s example and a copy, in the tables of rocprofv3's database."""
    suffix, database = "_0000d5_a1b2", sqlite3.connect(path)
    sizes = "".join(f", {what}_size_{axis} INTEGER" for what in ("workgroup", "grid") for axis in "xyz")
    database.executescript(f"""
CREATE TABLE rocpd_metadata{suffix}(id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
CREATE TABLE rocpd_string{suffix}(id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
CREATE TABLE rocpd_info_agent{suffix}(id INTEGER PRIMARY KEY, type TEXT, absolute_index INTEGER, name TEXT);
CREATE TABLE rocpd_info_kernel_symbol{suffix}(id INTEGER PRIMARY KEY, kernel_name TEXT, display_name TEXT);
CREATE TABLE rocpd_kernel_dispatch{suffix}(id INTEGER PRIMARY KEY, nid INTEGER, tid INTEGER, agent_id INTEGER,
  kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT, end BIGINT{sizes});
CREATE TABLE rocpd_memory_copy{suffix}(id INTEGER PRIMARY KEY, start BIGINT, end BIGINT, name_id INTEGER,
  dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, queue_id INTEGER, stream_id INTEGER);
INSERT INTO rocpd_string{suffix} VALUES(1, 'g', 'MEMORY_COPY_HOST_TO_DEVICE');
INSERT INTO rocpd_info_agent{suffix} VALUES(1, 'CPU', 0, 'cpu'), (5, 'GPU', 4, 'gfx90a');
INSERT INTO rocpd_info_kernel_symbol{suffix} VALUES
  (10, '_Z15addition_kernelIfEvPT_PKfS3_ii.kd', 'void addition_kernel<float>(float*, float const*, float const*, int, int)'),
  (13, '_Z15subtract_kernelPfPKfS1_ii.kd', 'subtract_kernel(float*, float const*, float const*, int, int)');
INSERT INTO rocpd_kernel_dispatch{suffix} VALUES
  (1, 1, 1, 5, 10, 1, 1, 1, 1551874061244694, 1551874061255734, 64, 1, 1, 1024, 1024, 1),
  (2, 1, 1, 5, 13, 2, 1, 2, 1551874061259214, 1551874061270254, 64, 1, 1, 1024, 1024, 1);
INSERT INTO rocpd_memory_copy{suffix} VALUES(1, 1551874060000000, 1551874060563880, 1, 5, 1, 4194304, 1, NULL);
""")  # noqa: E501
    database.commit()
    database.close()
    return path


@pytest.fixture(scope="session")
def rocpd_file(tmp_path_factory) -> Path:
    return write_rocpd(tmp_path_factory.mktemp("rocpd") / "run_results.db")


TAU_XML = """<profile_xml>
<definitions thread="*">
<metric id="0"><name>TIME</name>
<units>unknown</units>
</metric>
<event id="0"><name>.TAU application</name><group>TAU_USER</group></event>
<event id="1"><name><![CDATA[<genexpr> [{a.py}{3}]]]></name><group>TAU_PYTHON</group></event>
<event id="2"><name>MPI_Allreduce()</name><group>MPI</group></event>
<userevent id="0"><name>Message size for all-reduce</name></userevent>
</definitions>
</profile_xml>
<profile_xml>
<thread id="1.0.0.77" node="1" context="0" thread="0">
<metadata><attribute><name>CPU Cores</name><value>8</value></attribute></metadata>
</thread>
<definitions thread="1.0.0.77">
<metric id="0"><name>TIME</name></metric>
</definitions>
<profile thread="1.0.0.77">
<timestamp>1571893167667145</timestamp>
<interval_data metrics="0 ">
0 1 2 1000 5000000
1 3 0 20 -4
2 10 0 2500 2500
</interval_data>
<atomic_data>
0 10 67049472 8 729169.5 1E+17
</atomic_data>
</profile>
</profile_xml>
\0<profile_xml>
<derivedentity id="total"></derivedentity>
<derivedprofile derivedentity="total">
<derivedinterval_data metrics="0 ">
0 1 2 1000 5000000
</derivedinterval_data>
</derivedprofile>
</profile_xml>
"""

XLA_TRACE = """{"displayTimeUnit": "ns", "metadata": {"highres-ticks": true},
"traceEvents": [
{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
{"ph": "M", "pid": 1, "name": "process_sort_index", "args": {"sort_index": 1}},
{"ph": "M", "pid": 1, "tid": 13, "name": "thread_name", "args": {"name": "Stream #13(Compute)"}},
{"ph": "M", "pid": 1, "tid": 14, "name": "thread_name", "args": {"name": "Stream #14(MemcpyD2H)"}},
{"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
{"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "/host:CPU"}},
{"ph": "M", "pid": 7, "tid": 5, "name": "thread_name", "args": {"name": "python3"}},
{"ph": "X", "pid": 1, "tid": 13, "ts": 10.5, "dur": 4.25, "name": "ampere_sgemm_128x64_nn",
 "args": {"hlo_op": "dot.3", "hlo_module": "jit_f", "tf_op": "jit(f)/jit(main)/dot_general", "correlation_id": "42",
 "kernel_details": "regs:122 static_shared:0 dynamic_shared:0 grid:8,4,1 block:128,1,1 occ_pct:25"}},
{"ph": "X", "pid": 1, "tid": 13, "ts": 15.0, "dur": 2.0, "name": "input_add_fusion", "args": {"hlo_op": "fusion.1"}},
{"ph": "X", "pid": 1, "tid": 14, "ts": 20.0, "dur": 1.5, "name": "MemcpyD2H",
 "args": {"memcpy_details": "kind_src:device kind_dst:pinned size:4096 dest:0 async:1"}},
{"ph": "X", "pid": 1, "tid": 2, "ts": 10.5, "dur": 4.25, "name": "dot.3", "args": {"hlo_module": "jit_f"}},
{"ph": "X", "pid": 7, "tid": 5, "ts": 1.0, "dur": 30.0, "name": "PjitFunction(f)", "args": {}},
{}
]}
"""

SAMPLES = {
    "nvprof_text.SummaryText": """==7== NVPROF is profiling process 7, command: python a.py
==7== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   75.00%  3.0000ms         3  1.0000ms  900.00us  1.1000ms  void gemm<int=3>(float*, int)
                   25.00%  1.0000ms         2  500.00us  500.00us  500.00us  [CUDA memcpy HtoD]
      API calls:  100.00%  1.50000s         5  300.00ms     545ns  1.40000s  cudaLaunchKernel
""",
    "nvprof_csv.GpuTraceCsv": """==7== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Size","Throughput","Device","Stream","Name"
s,ms,,,,,,,MB,GB/s,,,
1.443182,40.152845,,,,,,,15.258789,0.371111,"GTX 1080 Ti (0)","7","[CUDA memcpy HtoD]"
1.483534,0.001536,1,1,1,32,8,1,,,"GTX 1080 Ti (1)","8","pad(float*, int) [2437]"
""",
    "nvprof_csv.MetricsCsv": """==7== Metric result:
"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"
"GTX 1080 Ti (0)","reduce<int>(int*)",101,"achieved_occupancy","Achieved Occupancy",0.5,0.7,0.6
"GTX 1080 Ti (0)","reduce<int>(int*)",101,"gld_efficiency","Global Memory Load Efficiency",99.0%,100.0%,99.5%
"GTX 1080 Ti (0)","reduce<int>(int*)",101,"dram_utilization","Device Memory Utilization","Low (1)","Mid (5)","Low (2)"
"GTX 1080 Ti (0)","gemm(int*)",2,"gst_throughput","Global Store Throughput",1.2MB/s,1.3MB/s,976.562500KB/s
""",
    "rocprof_json.RocprofJson": """{"rocprofiler-sdk-tool": [{"metadata": {"pid": 100, "init_time": 1, "fini_time": 9},
"agents": [{"id": {"handle": 222}, "type": 2, "node_id": 4, "name": "gfx942", "product_name": "AMD Instinct MI300X"}],
"kernel_symbols": [{"kernel_id": 7, "kernel_name": "_Z3addPfi.kd", "formatted_kernel_name": "add(float*, int)"}],
"callback_records": {"counter_collection": []}, "buffer_records": {"kernel_dispatch": [{"thread_id": 44,
"start_timestamp": 1000, "end_timestamp": 1800, "dispatch_info": {"agent_id": {"handle": 222},
"queue_id": {"handle": 2},
"kernel_id": 7, "workgroup_size": {"x": 256, "y": 1, "z": 1}, "grid_size": {"x": 4096, "y": 1, "z": 1}},
"stream_id": {"handle": 0}}], "memory_copy": [{"operation": 2, "thread_id": 44, "start_timestamp": 500,
"end_timestamp": 900, "dst_agent_id": {"handle": 222}, "bytes": 65536}]}}]}
""",
    "rocprof.RocprofCsv": """"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 4",1,1,852831,1,10,"void addition_kernel<float>(float*, float const*, float const*, int, int)",1,1551874061244694,1551874061255734,0,0,8,0,16,64,1,1,1024,1024,1
"KERNEL_DISPATCH","Agent 4",1,2,852831,2,13,"subtract_kernel(float*, float const*, float const*, int, int)",2,1551874061259214,1551874061270254,0,0,8,0,16,64,1,1,1024,1024,1
""",  # noqa: E501, the example of ROCprofiler-SDK's "Kernel naming and filtering using rocprofv3"
    "tau_xml.TauXml": TAU_XML,
    "xla.XlaTrace": XLA_TRACE,
    "tau.TauProfile": """3 templated_functions_MULTI_TIME
# Name Calls Subrs Excl Incl ProfileCalls # <metadata><attribute><name>CPU Cores</name><value>8</value></attribute></metadata>
".TAU application" 1 2 1000 5000000 0 GROUP="TAU_DEFAULT"
"<genexpr> [{a.py}{3}] says \\"hi\\"" 3 0 20 -4 0 GROUP="TAU_PYTHON"
"MPI_Allreduce()  " 10 0 2500 2500 0 GROUP="MPI | TAU_MESSAGE"
0 aggregates
2 userevents
# eventname numevents max min mean sumsqr
"Message size for all-reduce" 10 67049472 8 729169.5 1E+17
"Message size for broadcast" 0 0 0 0 0
""",  # noqa: E501
    "vtune.HotspotsCsv": """Function,CPU Time,CPU Time:Effective Time,CPU Time:Spin Time,Instructions,CPI Rate,Module
compress_block,12.504,12.100,0.404,871000000,5.149,app
[Outside any known module],0.120,0.120,0.0,26000000,,
""",
    "vtune.ApsSummary": """| Summary information
|--------------------------------------------------------------------
  Application                   : train
  HW Platform                   : Intel(R) Processor code named Knights Landing
  Logical core count per node   : 256
  Used statistics               : aps_results
|
| Your application might underutilize the available logical CPU cores.
  Elapsed Time:                             784.33 s
  MPI Time:                                  65.98 s             8.41% of Elapsed Time
    Top 5 MPI functions (avg time):
        MPI_Waitall:                         58.48 s             7.46% of Elapsed Time
  CPU Utilization:                            6.50%
  Average CPU Utilization:                   16.60 out of 256 logical CPUs
    DRAM Bandwidth
       Peak:                                  3.73 GB/s
""",
    "torch_table.TorchTable": """
-------------  ------------  ------------  ------------  ------------  ------------  ------------
         Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg    # of Calls
-------------  ------------  ------------  ------------  ------------  ------------  ------------
 aten::conv2d         0.07%      12.549us        64.67%      10.879ms       5.440ms             2
 aten::linear         0.34%      57.045us        14.60%       1.867ms       1.867ms             1
-------------  ------------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 12.746ms
""",
    "rocprof.RocprofSummary": """ROCPROFV3 KERNEL_DISPATCH SUMMARY:

| NAME | DOMAIN | CALLS | DURATION (nsec) | AVERAGE (nsec) | PERCENT (INC) |
|------|--------|-------|-----------------|----------------|---------------|
| void addition_kernel<float>(float*, float const*, int) | KERNEL_DISPATCH | 8 | 184324 | 2.304e+04 | 40.681542 |
| divide_kernel(float*, float const*, int, int) | KERNEL_DISPATCH | 8 | 94482 | 1.181e+04 | 20.852811 |
""",
    "onnxruntime.OnnxRuntimeJson": """[
{"cat" : "Session","pid" :16638,"tid" :16638,"dur" :8142,"ts" :23,"ph" : "X","name" :"model_loading_uri","args" : {}},
{"cat" : "Node","pid" :16638,"tid" :16638,"dur" :440,"ts" :178261,"ph" : "X","name" :"relu_nchwc_kernel_time","args" : {"output_size" : "131072","activation_size" : "49152","provider" : "CPUExecutionProvider","parameter_size" : "3584","input_type_shape" : [{"float":[1,3,64,64]},{"float":[32,3,3,3]},{"float":[32]}],"output_type_shape" : [{"float":[1,32,32,32]}],"op_name" : "Conv"}},
{"cat" : "Session","pid" :16638,"tid" :16638,"dur" :49673,"ts" :174103,"ph" : "X","name" :"model_run","args" : {}}
]
""",  # noqa: E501, as ONNX Runtime 1.32 writes it
    "unitrace.UnitraceText": """=== Device Timing Results: ===

                Total Execution Time (ns):            295236137
Total Device Time for L0 backend (ns):                177147822

== L0 Backend: ==

                            Kernel,       Calls,     Time (ns),  Time (%),     Average (ns),      Min (ns),      Max (ns)
                              GEMM,           4,     172104499,     97.15,         43026124,      42814000,      43484166
zeCommandListAppendMemoryCopy(M2D),           8,       2934831,      1.66,           366853,        286500,        585333
zeCommandListAppendMemoryCopy(D2M),           4,       2099164,      1.18,           524791,        497666,        559666
        zeCommandListAppendBarrier,           8,          9328,      0.01,             1166,          1166,          1166
""",  # noqa: E501, the example of PTI-GPU's README
    "unitrace.UnitraceTrace": """{ "traceEvents":[
{"ph": "X", "tid": 4294967295, "pid": 4294967295, "name": "gemm_kernel[SIMD16 {128; 1; 1} {16; 2; 8}]", "cat": "gpu_op", "ts": 1695711406516161, "dur": 600, "args": {"id": "2"}},
{"ph": "t", "tid": 4294967295, "pid": 4294967295, "name": "dep", "cat": "Flow_H2D_2_0", "ts": 1695711406516161, "id": 2},
{"ph": "X", "tid": 4294967294, "pid": 4294967295, "name": "zeCommandListAppendMemoryCopy(M2D)[4096]", "cat": "gpu_op", "ts": 1695711406516000, "dur": 9, "args": {"id": "1"}},
{"ph": "X", "tid": 77, "pid": 77, "name": "zeCommandListAppendLaunchKernel", "cat": "cpu_op", "ts": 1695711406515990, "dur": 5, "id": 0},
{"ph": "s", "tid": 77, "pid": 77, "name": "dep", "cat": "Flow_H2D_2_0", "ts": 1695711406515990, "id": 2},
{"ph": "M", "name": "process_name", "pid": 77, "ts": 1695711406515000, "args": {"name": "HOST<node>"}},
{"ph": "M", "name": "process_name", "pid": 4294967295, "ts": 1695711406515000, "args": {"name": "DEVICE<node>0:4d:0:0 #0"}}
]
}
""",  # noqa: E501, as unitrace's chromelogger.h writes it
    "ascend.AscendCsv": """Device_id,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us)
0,7,aclnnMatmul_MatMulCommon_MatMulV2,MatMulV2,AI_CORE,1774670741777000.027\t,420.50,0.02
0,7,aclnnMul_MulAiCore_Mul,Mul,AI_VECTOR_CORE,1774670741777420.5\t,18.32,64.742
""",
    "ascend.AscendTrace": """[{"name": "process_name", "pid": 9, "tid": 0, "ph": "M", "args": {"name": "Ascend Hardware"}},
{"name": "process_name", "pid": 1, "tid": 0, "ph": "M", "args": {"name": "Python"}},
{"name": "process_name", "pid": 5, "tid": 0, "ph": "M", "args": {"name": "CANN"}},
{"name": "process_name", "pid": 6, "tid": 0, "ph": "M", "args": {"name": "Overlap Analysis"}},
{"name": "aten::mm", "pid": 1, "tid": 1, "ts": "1704161511420206.400", "dur": 50, "ph": "X", "args": {}},
{"name": "AscendCL@aclopExecuteV2", "pid": 5, "tid": 77, "ts": "1704161511420256.000", "dur": 10, "ph": "X", "args": {}},
{"name": "HostToDevice88", "ph": "s", "cat": "HostToDevice", "id": "88", "pid": 5, "tid": 77, "ts": "1704161511420256.000"},
{"name": "HostToDevice88", "ph": "f", "bp": "e", "cat": "HostToDevice", "id": "88", "pid": 9, "tid": 2, "ts": "1704161511420306.491"},
{"name": "MatMulV2", "pid": 9, "tid": 2, "ts": "1704161511420306.491", "dur": 20.5, "ph": "X", "args": {"Task Type": "AI_CORE"}},
{"name": "EVENT_WAIT", "pid": 9, "tid": 3, "ts": "1704161511420326.991", "dur": 19.5, "ph": "X", "args": {"Task Type": "EVENT_WAIT"}},
{"name": "hcom_allReduce__1", "pid": 9, "tid": 3, "ts": "1704161511420346.491", "dur": 30, "ph": "X", "args": {"Task Type": "HCCL"}},
{"name": "Computing", "pid": 6, "tid": 0, "ts": "1704161511420306.491", "dur": 20.5, "ph": "X", "args": {}}]
""",  # noqa: E501, as torch_npu writes it
}
"""A small profile of each text format, by module and class of its reader."""


@pytest.fixture(scope="session")
def samples() -> dict[str, bytes]:
    return {name: text.encode() for name, text in SAMPLES.items()}
