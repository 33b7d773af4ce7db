// TensorFlow's own operations on the stand-in device.
//
// A TensorFlow for CPUs has no kernels for GPUs of operations that compute: a matmul on '/gpu:0' would be an error, or
// move to the CPU. Here the CPU's kernel of each such operation becomes a piece of work of the device's stream. There
// it computes in the device's memory, which is accessible in work only. So tensors lie where a GPU's would, and are
// copied when a GPU's would be copied.
//
// As on a GPU, int32 tensors are in the host's memory, and operations on strings and datasets have no kernel.
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/testing/emulator/stream.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tests/standin/counters.h"
#include "tf/device/raw_stream.h"

namespace lockstep::standin {
namespace {

namespace tf = ::tensorflow;

// The beginnings of the names of stateful operations of training. The others are about input, output and control.
constexpr std::string_view kStateful[] = {"Resource",  "Assign",          "Random",
                                          "Truncated", "ParameterizedTr", "StatefulUniform"};

bool IsStatefulTraining(const tf::OpDef& op) {
  for (const std::string_view prefix : kStateful) {
    if (op.is_stateful() && absl::StartsWith(op.name(), prefix)) return true;
  }
  return false;
}

class OnDevice : public tf::OpKernel {
 public:
  explicit OnDevice(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    std::shared_ptr<const tf::NodeProperties> node;
    OP_REQUIRES_OK(construction,
                   tf::NodeProperties::CreateFromNodeDef(construction->def(), tf::OpRegistry::Global(), &node));
    tf::OpKernel* kernel = nullptr;
    tf::DeviceBase* const device = construction->device();
    OP_REQUIRES_OK(construction, tf::CreateOpKernel(tf::DeviceType(tf::DEVICE_CPU), device, device->GetAllocator({}),
                                                    construction->function_library(), node,
                                                    construction->graph_def_version(), &kernel));
    kernel_.reset(kernel);
    is_stateful_ = node->op_def->is_stateful();
    OP_REQUIRES(construction, kernel_->AsAsync() == nullptr,
                absl::UnimplementedError("the stand-in device runs no asynchronous kernels"));
  }

  // Shapes of outputs may depend on values, so it waits for the work, which the stream puts into order. With delays the
  // values come later, as on a GPU: code that does not wait for the stream reads other ones, or has its own
  // overwritten.
  void Compute(tf::OpKernelContext* context) override {
    const Result<RawDevice> device = RawDeviceOf(context);
    OP_REQUIRES(context, device.ok(), absl::InternalError(device.status().message()));
    Count(kLaunches, 0);
    std::mutex mutex;
    std::condition_variable ended;
    bool has_ended = false;
    std::vector<Late> late;
    auto* const stream = reinterpret_cast<emulator::Stream*>(device->stream);
    stream->Post([&] {
      kernel_->Compute(context);
      if (HasDelays()) late = TakeOutputs(context);
      const std::lock_guard lock(mutex);
      has_ended = true;
      ended.notify_one();
    });
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return has_ended; });
    if (late.empty()) return;
    stream->Post([late = std::move(late)] {
      for (const Late& one : late) std::memcpy(one.at, one.bytes.data(), one.bytes.size());
    });
  }

 private:
  // Values that come late, and their place. The memory may get another owner in the meantime, as on a GPU.
  struct Late {
    void* at;
    std::string bytes;
  };

  static bool HasDelays() {
    static const char* const delay = std::getenv("LOCKSTEP_EMULATED_DELAY_US");
    return delay != nullptr && std::atoi(delay) > 0;
  }

  // Takes the values out of outputs that nobody else has yet: those that share no memory with an input or a variable.
  std::vector<Late> TakeOutputs(tf::OpKernelContext* context) const {
    constexpr int kNotANumber = 0xff;
    std::vector<Late> late;
    if (is_stateful_ || context->num_inputs() == 0 || !context->status().ok()) return late;
    for (int i = 0; i < context->num_outputs(); ++i) {
      tf::Tensor* const output = context->mutable_output(i);
      if (output == nullptr || output->TotalBytes() == 0 || context->output_alloc_attr(i).on_host()) continue;
      bool is_shared = !tf::DataTypeCanUseMemcpy(output->dtype());
      for (int j = 0; j < context->num_inputs(); ++j) {
        is_shared = is_shared || context->input_is_ref(j) || output->SharesBufferWith(context->input(j));
      }
      if (is_shared) continue;
      char* const at = static_cast<char*>(output->data());
      late.push_back({at, std::string(at, output->TotalBytes())});
      std::memset(at, kNotANumber, output->TotalBytes());
    }
    return late;
  }

  std::unique_ptr<tf::OpKernel> kernel_;
  bool is_stateful_ = false;
};

class Factory : public tf::kernel_factory::OpKernelFactory {
 public:
  tf::OpKernel* Create(tf::OpKernelConstruction* construction) override { return new OnDevice(construction); }
};

// Returns the only type that a kernel has for an argument, or DT_INVALID.
tf::DataType TypeOf(const tf::KernelDef& kernel, const tf::OpDef::ArgDef& argument) {
  if (argument.type() != tf::DT_INVALID) return argument.type();
  for (const auto& constraint : kernel.constraint()) {
    if (constraint.name() == argument.type_attr() && constraint.allowed_values().list().type_size() == 1) {
      return constraint.allowed_values().list().type(0);
    }
  }
  return tf::DT_INVALID;
}

bool IsOfDevice(const tf::OpDef& op, const tf::KernelDef& kernel) {
  if (!kernel.label().empty() || absl::StartsWith(op.name(), "Lockstep")) return false;
  if (op.is_stateful() && !IsStatefulTraining(op)) return false;
  const auto is_of_host = [&](const tf::OpDef::ArgDef& argument) {
    const tf::DataType type = TypeOf(kernel, argument);
    return type == tf::DT_STRING || type == tf::DT_VARIANT || (type == tf::DT_RESOURCE && !op.is_stateful());
  };
  for (const auto& input : op.input_arg()) {
    if (is_of_host(input)) return false;
  }
  for (const auto& output : op.output_arg()) {
    if (is_of_host(output)) return false;
  }
  return true;
}

// Returns whether both kernels would be candidates for one node. Kernels of "DEFAULT" serve any device, but those that
// update variables compute on the CPU, and a plug-in has to bring its own.
bool Overlap(const tf::KernelDef& a, const tf::KernelDef& b) {
  for (const auto& of_a : a.constraint()) {
    for (const auto& of_b : b.constraint()) {
      if (of_a.name() != of_b.name()) continue;
      bool meet = false;
      for (const int type_a : of_a.allowed_values().list().type()) {
        for (const int type_b : of_b.allowed_values().list().type()) meet = meet || type_a == type_b;
      }
      if (!meet) return false;
    }
  }
  return true;
}

void RegisterAll() {
  const tf::KernelList all = tf::GetAllRegisteredKernels();
  std::unordered_map<std::string_view, std::vector<const tf::KernelDef*>> of_devices;
  for (const tf::KernelDef& kernel : all.kernel()) {
    if (kernel.device_type() == tf::DEVICE_GPU || kernel.device_type() == "DEFAULT") {
      of_devices[kernel.op()].push_back(&kernel);
    }
  }
  for (const tf::KernelDef& kernel : all.kernel()) {
    const tf::OpDef* op = nullptr;
    if (kernel.device_type() != tf::DEVICE_CPU || !tf::OpRegistry::Global()->LookUpOpDef(kernel.op(), &op).ok() ||
        !IsOfDevice(*op, kernel)) {
      continue;
    }
    bool is_there = false;
    for (const tf::KernelDef* const other : of_devices[kernel.op()]) {
      const bool is_usable = other->device_type() == tf::DEVICE_GPU || !IsStatefulTraining(*op);
      is_there = is_there || (is_usable && Overlap(kernel, *other));
    }
    if (is_there) continue;
    auto of_device = std::make_unique<tf::KernelDef>(kernel);
    of_device->set_device_type(tf::DEVICE_GPU);
    const auto place = [&](const tf::OpDef::ArgDef& argument) {
      const tf::DataType type = TypeOf(kernel, argument);
      if (type != tf::DT_INT32 && type != tf::DT_RESOURCE) return;
      for (const std::string& name : kernel.host_memory_arg()) {
        if (name == argument.name()) return;
      }
      of_device->add_host_memory_arg(argument.name());
    };
    for (const auto& input : op->input_arg()) place(input);
    for (const auto& output : op->output_arg()) place(output);
    tf::kernel_factory::OpKernelRegistrar(of_device.release(), "stand-in", std::make_unique<Factory>());
  }
}

}  // namespace
}  // namespace lockstep::standin

// TensorFlow calls it when it loads the plug-in.
extern "C" __attribute__((visibility("default"))) void TF_InitKernel() { lockstep::standin::RegisterAll(); }
