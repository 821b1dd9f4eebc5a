// Views: Split, Reshape, Transpose and Identity give the same data another shape and strides, without copying.

#include "program.h"

namespace peagle {

// A value of a program and its location: `offset` elements into a buffer. Until memory is assigned, only inputs of the
// node have a valid address.
struct Value {
  Tensor tensor;
  int buffer = -1;
  std::int64_t offset = 0;
};

inline bool is_view(const std::string& op) {
  return op == "Split" || op == "Reshape" || op == "Transpose" || op == "Identity";
}

inline bool is_dense(const Tensor& tensor) {
  const Tensor dense(tensor.shape, tensor.type, nullptr);
  for (int i = 0; i < tensor.shape.rank; i++) {
    if (tensor.shape.sizes[i] != 1 && tensor.strides[i] != dense.strides[i]) return false;
  }
  return true;
}

// Reshapes a view in place. Returns false if no strides describe the new shape, or its last dimension is not dense.
inline bool reshape(Tensor* tensor, const Shape& shape) {
  Tensor result(shape, tensor->type, tensor->address);
  if (is_dense(*tensor) || shape.count() == 0) {
    *tensor = result;
    return true;
  }
  const Shape& old = tensor->shape;
  int from = 0, to = 0;
  while (from < old.rank && to < shape.rank) {  // match groups of dimensions with equal element counts
    int end_from = from + 1, end_to = to + 1;
    std::int64_t count_from = old.sizes[from], count_to = shape.sizes[to];
    while (count_from != count_to) {
      if (count_from < count_to) {
        if (end_from == old.rank) return false;
        count_from *= old.sizes[end_from++];
      } else {
        if (end_to == shape.rank) return false;
        count_to *= shape.sizes[end_to++];
      }
    }
    for (int i = from; i + 1 < end_from; i++) {
      if (tensor->strides[i] != tensor->strides[i + 1] * old.sizes[i + 1]) return false;
    }
    std::int64_t stride = tensor->strides[end_from - 1];
    for (int i = end_to - 1; i >= to; i--) {
      result.strides[i] = stride;
      stride *= shape.sizes[i];
    }
    from = end_from;
    to = end_to;
  }
  for (; to < shape.rank; to++) {
    if (shape.sizes[to] != 1) return false;
    result.strides[to] = 1;
  }
  if (shape.rank > 0 && shape.last() != 1 && result.strides[shape.rank - 1] != 1) return false;
  *tensor = result;
  return true;
}

// Returns the output shape of Reshape: 0 copies the input's size unless `zero_is_zero`, -1 is inferred.
inline Shape shape_of_reshape(const Shape& old, const std::int64_t* sizes, int rank, bool zero_is_zero) {
  if (rank > kMaxRank) refuse("a Reshape to %d dimensions is not supported", rank);
  Shape result;
  std::int64_t known = 1;
  int inferred = -1;
  for (result.rank = 0; result.rank < rank; result.rank++) {
    const int i = result.rank;
    std::int64_t size = sizes[i];
    if (size == 0 && !zero_is_zero) size = i < old.rank ? old.sizes[i] : 0;
    if (size == -1) {
      inferred = i;
      size = 1;
    }
    if (size < 0) refuse("a Reshape has the invalid size %lld", static_cast<long long>(size));
    result.sizes[i] = size;
    known *= size;
  }
  if (inferred >= 0) result.sizes[inferred] = known == 0 ? 0 : old.count() / known;
  if (result.count() != old.count()) {
    refuse("a Reshape cannot turn %lld elements into %lld elements", static_cast<long long>(old.count()),
           static_cast<long long>(result.count()));
  }
  return result;
}

inline std::vector<std::int64_t> sizes_of(const StepText& step, const char* name) {
  const std::string* text = step.find(name);
  std::vector<std::int64_t> sizes;
  if (text == nullptr) refuse("a %s has no %s", step.op.c_str(), name);
  for (const std::string& each : split(*text, ',')) sizes.push_back(std::strtoll(each.c_str(), nullptr, 10));
  return sizes;
}

// Computes the outputs of a view step. Returns false if `x` must be made dense first.
inline bool make_view(const StepText& step, const Value& x, const std::vector<Value>& values,
                      std::vector<Value>* outputs) {
  const Shape& shape = x.tensor.shape;
  Value result = x;
  if (step.op == "Reshape") {
    const std::string* zero = step.find("allowzero");
    std::vector<std::int64_t> sizes;
    if (step.inputs.size() > 1) {
      const Tensor& target = values[std::size_t(step.inputs[1])].tensor;
      if (target.type != ort::kInt64 || target.shape.rank != 1) refuse("the target shape of a Reshape must be int64");
      sizes.assign(target.data<const std::int64_t>(), target.data<const std::int64_t>() + target.shape.count());
    } else {
      sizes = sizes_of(step, "shape");
    }
    if (!reshape(&result.tensor, shape_of_reshape(shape, sizes.data(), int(sizes.size()), zero && *zero == "1"))) {
      return false;
    }
  } else if (step.op == "Transpose") {
    const std::vector<std::int64_t> order = sizes_of(step, "perm");
    if (int(order.size()) != shape.rank) refuse("a Transpose must permute %d dimensions", shape.rank);
    for (int i = 0; i < shape.rank; i++) {
      const std::int64_t from = order[std::size_t(i)];
      if (from < 0 || from >= shape.rank) refuse("a Transpose has no dimension %lld", static_cast<long long>(from));
      result.tensor.shape.sizes[i] = shape.sizes[from];
      result.tensor.strides[i] = x.tensor.strides[from];
    }
    if (order.back() != shape.rank - 1) refuse("a Transpose must not move the last dimension");
  } else if (step.op == "Split") {
    std::int64_t at = 0;
    const std::vector<std::int64_t> sizes = sizes_of(step, "sizes");
    if (sizes.size() != step.outputs.size()) refuse("a Split does not have %d outputs", int(sizes.size()));
    for (std::int64_t size : sizes) {
      Value part = x;
      part.tensor.shape = shape.with_last(size);
      part.offset += at;
      outputs->push_back(part);
      at += size;
    }
    if (at != shape.last()) refuse("the sizes of a Split do not add up to %lld", static_cast<long long>(shape.last()));
    return true;
  }
  outputs->push_back(result);
  return true;
}

}  // namespace peagle
