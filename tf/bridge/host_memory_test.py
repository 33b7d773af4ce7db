from tensorflow.python.framework import kernels, op_def_registry

from lockstep._src.engine import library

# The arguments in the host's memory of operations with code for devices (LOCKSTEP_DEVICE_KERNEL).
_ON_HOST = {
    "LockstepAllReduce": set(),
    "LockstepBroadcast": set(),
    "LockstepAllGather": {"counts"},
    "LockstepAllToAll": {"splits", "received_splits"},
    "LockstepReduceScatter": {"counts"},
    "LockstepNamedAllReduce": {"called"},
    "LockstepNamedReduceScatter": {"called"},
    "LockstepNamedAllGather": {"called"},
    "LockstepNamedAllToAll": {"called", "splits", "received"},
    "LockstepNamedBroadcast": {"called"},
}


# Promise (gpu.md): every operation has a kernel for GPUs.
def test_every_operation_has_a_kernel_for_gpus_and_those_without_code_for_devices_have_arguments_on_the_host():
    assert library.ops is not None
    of_cpu, of_gpu = {}, {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.op.startswith("Lockstep"):
            of = of_gpu if kernel.device_type == "GPU" else of_cpu
            of.setdefault(kernel.op, []).append(kernel)
    assert len(of_cpu) > 60
    assert {op: len(found) for op, found in of_gpu.items()} == {op: len(found) for op, found in of_cpu.items()}
    for op, found in of_gpu.items():
        definition = op_def_registry.get(op)
        arguments = {argument.name for argument in (*definition.input_arg, *definition.output_arg)}
        for kernel in found:
            assert set(kernel.host_memory_arg) == _ON_HOST.get(op, arguments), op
