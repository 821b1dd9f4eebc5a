// Wrappers of ONNX Runtime's C interface: a node, and one call of its kernel.

#include "kernel.h"

namespace peagle {

// Throws a Refusal if `status` is an error.
inline void check(ort::Status* status) {
  if (status == nullptr) return;
  Refusal refusal{ort::call(ort::kGetErrorMessage, status)};
  ort::call(ort::kReleaseStatus, status);
  throw refusal;
}

inline Tensor tensor_of(const ort::Value* value) {
  Shape shape;
  int type = 0;
  void* address = nullptr;
  ort::TensorInfo* owned = nullptr;
  check(ort::call(ort::kGetTensorTypeAndShape, value, &owned));
  const std::unique_ptr<ort::TensorInfo, void (*)(ort::TensorInfo*)> info(
      owned, [](ort::TensorInfo* each) { ort::call(ort::kReleaseTensorInfo, each); });
  std::size_t rank = 0;
  check(ort::call(ort::kGetTensorElementType, info.get(), &type));
  check(ort::call(ort::kGetDimensionsCount, info.get(), &rank));
  if (rank > std::size_t(kMaxRank)) refuse("a tensor has more than %d dimensions", kMaxRank);
  shape.rank = int(rank);
  check(ort::call(ort::kGetDimensions, info.get(), shape.sizes, rank));
  check(ort::call(ort::kGetTensorMutableData, const_cast<ort::Value*>(value), &address));
  return Tensor(shape, type, address);
}

class OrtNode : public Node {
 public:
  explicit OrtNode(const ort::KernelInfo* info) : info_(info) {}

  std::string text(const char* name, const char* fallback) const override {
    std::size_t size = 0;  // includes the terminating zero
    if (!is_present(ort::call(ort::kGetAttributeString, info_, name, nullptr, &size)) || size == 0) return fallback;
    std::string buffer(size, '\0');
    check(ort::call(ort::kGetAttributeString, info_, name, &buffer[0], &size));
    buffer.resize(size - 1);
    return buffer;
  }
  std::int64_t integer(const char* name, std::int64_t fallback) const override {
    std::int64_t value = 0;
    return is_present(ort::call(ort::kGetAttributeInt64, info_, name, &value)) ? value : fallback;
  }
  float number(const char* name, float fallback) const override {
    float value = 0;
    return is_present(ort::call(ort::kGetAttributeFloat, info_, name, &value)) ? value : fallback;
  }
  Tensor constant_or_none(std::size_t at) const override {
    int is_constant = 0;
    const ort::Value* value = nullptr;
    check(ort::call(ort::kGetConstantInput, info_, at, &is_constant, &value));
    return is_constant && value != nullptr ? tensor_of(value) : Tensor();
  }

 private:
  // Treats any error as an absent attribute: the build has already checked the attributes that are present.
  static bool is_present(ort::Status* status) {
    if (status == nullptr) return true;
    ort::call(ort::kReleaseStatus, status);
    return false;
  }
  const ort::KernelInfo* info_;
};

// One call of a node's kernel.
class Call {
 public:
  explicit Call(ort::KernelContext* context) : context_(context) {}

  Tensor input(std::size_t at) const {
    const ort::Value* value = nullptr;
    if (at >= inputs()) return Tensor();
    check(ort::call(ort::kGetInput, context_, at, &value));
    return value != nullptr ? tensor_of(value) : Tensor();
  }
  // Returns an absent tensor if the graph does not use the output.
  Tensor output(std::size_t at, const Shape& shape, int type) {
    ort::Value* value = nullptr;
    void* address = nullptr;
    if (at >= outputs()) return Tensor();
    check(ort::call(ort::kGetOutput, context_, at, shape.sizes, std::size_t(shape.rank), &value));
    if (value == nullptr) return Tensor();
    if (type == ort::kAnyType) return tensor_of(value);
    check(ort::call(ort::kGetTensorMutableData, value, &address));
    return Tensor(shape, type, address);
  }
  std::size_t inputs() const {
    std::size_t count = 0;
    check(ort::call(ort::kGetInputCount, context_, &count));
    return count;
  }
  std::size_t outputs() const {
    std::size_t count = 0;
    check(ort::call(ort::kGetOutputCount, context_, &count));
    return count;
  }
  // Calls work(0) .. work(pieces - 1), each once, on the session's thread pool. `work` must not throw.
  template <class Work>
  void parallel(std::size_t pieces, const Work& work) {
    if (pieces == 0) return;
    if (pieces == 1) return work(0);  // do not wake a thread
    const auto piece = [](void* user, std::size_t at) { (*static_cast<const Work*>(user))(at); };
    check(ort::call(ort::kParallelFor, context_, piece, pieces, std::size_t(0),
                    const_cast<void*>(static_cast<const void*>(&work))));
  }

 private:
  ort::KernelContext* context_;
};

}  // namespace peagle
