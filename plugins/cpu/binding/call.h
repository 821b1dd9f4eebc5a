// A node and its runs as ONNX Runtime gives them.

#include "kernel.h"

namespace peagle {

// Throws what ONNX Runtime complains of.
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

class GivenNode : public Node {
 public:
  explicit GivenNode(const ort::KernelInfo* info) : info_(info) {}

  std::string text(const char* name, const char* otherwise) const override {
    std::size_t size = 0;  // with the zero at the end
    if (!found(ort::call(ort::kGetAttributeString, info_, name, nullptr, &size)) || size == 0) return otherwise;
    std::string buffer(size, '\0');
    check(ort::call(ort::kGetAttributeString, info_, name, &buffer[0], &size));
    buffer.resize(size - 1);
    return buffer;
  }
  std::int64_t whole(const char* name, std::int64_t otherwise) const override {
    std::int64_t value = 0;
    return found(ort::call(ort::kGetAttributeInt64, info_, name, &value)) ? value : otherwise;
  }
  float number(const char* name, float otherwise) const override {
    float value = 0;
    return found(ort::call(ort::kGetAttributeFloat, info_, name, &value)) ? value : otherwise;
  }
  Tensor constant_or_none(std::size_t at) const override {
    int is_constant = 0;
    const ort::Value* value = nullptr;
    check(ort::call(ort::kGetConstantInput, info_, at, &is_constant, &value));
    return is_constant && value != nullptr ? tensor_of(value) : Tensor();
  }

 private:
  // Absent attributes have the spec's default; the compiler has checked the others.
  static bool found(ort::Status* status) {
    if (status == nullptr) return true;
    ort::call(ort::kReleaseStatus, status);
    return false;
  }
  const ort::KernelInfo* info_;
};

// One run of a node.
class Call {
 public:
  explicit Call(ort::KernelContext* context) : context_(context) {}

  Tensor input(std::size_t at) const {
    const ort::Value* value = nullptr;
    if (at >= inputs()) return Tensor();
    check(ort::call(ort::kGetInput, context_, at, &value));
    return value != nullptr ? tensor_of(value) : Tensor();
  }
  // Not there where nobody wants it.
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
  // work(0) .. work(pieces - 1), each once, by however many of the session's threads come; they must not throw.
  template <class Work>
  void parallel(std::size_t pieces, const Work& work) {
    if (pieces == 0) return;
    if (pieces == 1) return work(0);  // waking a thread costs more
    const auto piece = [](void* user, std::size_t at) { (*static_cast<const Work*>(user))(at); };
    check(ort::call(ort::kParallelFor, context_, piece, pieces, std::size_t(0),
                    const_cast<void*>(static_cast<const void*>(&work))));
  }

 private:
  ort::KernelContext* context_;
};

}  // namespace peagle
