#include "tf/bridge/host_memory.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tf/bridge/convert.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Returns the CPU's kernel of a GPU's node, or null with an error of the construction.
std::unique_ptr<tf::OpKernel> KernelOfCpu(tf::OpKernelConstruction* construction) {
  tf::AllocatorAttributes on_host;
  on_host.set_on_host(true);
  std::shared_ptr<const tf::NodeProperties> node;
  absl::Status status = tf::NodeProperties::CreateFromNodeDef(construction->def(), tf::OpRegistry::Global(), &node);
  tf::OpKernel* kernel = nullptr;
  if (status.ok()) {
    tf::DeviceBase* const device = construction->device();
    status = tf::CreateOpKernel(tf::DeviceType(tf::DEVICE_CPU), device, device->GetAllocator(on_host),
                                construction->function_library(), node, construction->graph_def_version(), &kernel);
  }
  construction->SetStatus(status);
  return std::unique_ptr<tf::OpKernel>(kernel);
}

// The kernels of a GPU's node. They only tell TensorFlow that arguments are in the host's memory: to TensorFlow, the
// arguments of the CPU's kernel are in the memory of the node's device.
class KernelOnHost : public tf::OpKernel {
 public:
  KernelOnHost(tf::OpKernelConstruction* construction, std::unique_ptr<tf::OpKernel> kernel)
      : OpKernel(construction), kernel_(std::move(kernel)) {}
  void Compute(tf::OpKernelContext* context) override { kernel_->Compute(context); }

 private:
  const std::unique_ptr<tf::OpKernel> kernel_;
};

class AsyncKernelOnHost : public tf::AsyncOpKernel {
 public:
  AsyncKernelOnHost(tf::OpKernelConstruction* construction, std::unique_ptr<tf::OpKernel> kernel)
      : AsyncOpKernel(construction), kernel_(std::move(kernel)) {}
  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    kernel_->AsAsync()->ComputeAsync(context, std::move(done));
  }

 private:
  const std::unique_ptr<tf::OpKernel> kernel_;
};

class FactoryOnHost : public tf::kernel_factory::OpKernelFactory {
 public:
  tf::OpKernel* Create(tf::OpKernelConstruction* construction) override {
    std::unique_ptr<tf::OpKernel> kernel = KernelOfCpu(construction);
    if (kernel == nullptr) return nullptr;
    if (kernel->AsAsync() != nullptr) return new AsyncKernelOnHost(construction, std::move(kernel));
    return new KernelOnHost(construction, std::move(kernel));
  }
};

}  // namespace

void RegisterOnHost(const tf::KernelDef& kernel) {
  const tf::OpDef* op = nullptr;
  if (!tf::OpRegistry::Global()->LookUpOpDef(kernel.op(), &op).ok()) return;
  auto of_gpu = std::make_unique<tf::KernelDef>(kernel);
  of_gpu->set_device_type(tf::DEVICE_GPU);
  for (const auto& input : op->input_arg()) of_gpu->add_host_memory_arg(input.name());
  for (const auto& output : op->output_arg()) of_gpu->add_host_memory_arg(output.name());
  // It takes the definition.
  tf::kernel_factory::OpKernelRegistrar(of_gpu.release(), "lockstep on the host", std::make_unique<FactoryOnHost>());
}

Result<tf::Tensor> AllocateTemporary(tf::OpKernelContext* context, tf::DataType dtype, const tf::TensorShape& shape) {
  tf::AllocatorAttributes on_host;
  on_host.set_on_host(true);
  tf::Tensor temporary;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_temp(dtype, shape, &temporary, on_host)));
  return temporary;
}

Status CheckOnHost(const tf::ResourceHandle& variable) {
  tf::DeviceNameUtils::ParsedName device;
  if (!tf::DeviceNameUtils::ParseFullName(variable.device(), &device) || device.type == tf::DEVICE_CPU) {
    return OkStatus();
  }
  return FailedPrecondition(absl::StrCat("variable '", variable.name(), "' is in the memory of ", device.type, ":",
                                         device.id, ", wanted the host's: create it inside tf.device('/CPU:0')"));
}

}  // namespace lockstep
