// Registration of kernels as ONNX Runtime operators. sources.py appends the generated table of ops.

#include "call.h"

namespace peagle {

// Runs `work`, and converts exceptions to a status: no exception may leave the library.
template <class Work>
ort::Status* to_status(const Work& work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const Refusal& refusal) {
    return ort::call(ort::kCreateStatus, 1, refusal.why.c_str());
  } catch (const std::exception& error) {  // std::bad_alloc
    return ort::call(ort::kCreateStatus, 1, error.what());
  }
}

// A node's kernel and its constant inputs.
class LoadedNode {
 public:
  LoadedNode(const Op& op, const ort::KernelInfo* info) : op_(op) {
    const OrtNode node(info);
    const std::int64_t num_inputs = op.is_variadic ? node.integer("inputs", 0) : std::int64_t(op.inputs.size());
    if (num_inputs < 0 || num_inputs > kMaxOperands)
      refuse("a node has %lld inputs, which is not supported", static_cast<long long>(num_inputs));
    constants_.resize(std::size_t(num_inputs));
    for (std::size_t i = 0; i < constants_.size(); i++) constants_[i] = node.constant_or_none(i);
    kernel_ = op.make(node);
  }

  void compute(Call call) const {
    Inputs inputs(constants_);
    for (std::size_t i = 0; i < inputs.size(); i++) {
      if (inputs[i].is_there()) continue;
      inputs[i] = call.input(i);
      if (!inputs[i].is_there() && (op_.is_variadic || !op_.inputs[i].is_optional)) {
        refuse("a required input is missing");
      }
    }
    std::vector<Shape> shapes(op_.is_variadic ? call.outputs() : op_.outputs.size());
    for (std::size_t i = 0; i < shapes.size(); i++) {
      if (!op_.is_variadic && op_.outputs[i].alias >= 0) shapes[i] = inputs[std::size_t(op_.outputs[i].alias)].shape;
    }
    kernel_->shapes(inputs, shapes.data());
    Outputs outputs(shapes.size());
    for (std::size_t i = 0; i < outputs.size(); i++) outputs[i] = output(call, i, shapes[i], inputs);
    const std::unique_ptr<Run> run = kernel_->start(inputs, outputs);
    run->steer();
    const Scratch scratch(run->scratch_bytes());
    run->use_scratch(scratch.get());
    for (int phase = 0; phase < run->phases(); phase++) {
      call.parallel(run->pieces(phase), [&](std::size_t piece) { run->work(phase, piece); });
    }
  }

 private:
  static constexpr std::int64_t kMaxOperands = 1 << 16;

  Tensor output(Call& call, std::size_t at, const Shape& shape, const Inputs& inputs) const {
    const Operand& operand = op_.outputs[op_.is_variadic ? 0 : at];
    const int type = operand.same_as >= 0 ? inputs[std::size_t(operand.same_as)].type : operand.type;
    const Tensor result = call.output(at, shape, type);
    if (operand.alias < 0 || !result.is_there()) return result;
    const Tensor& from = inputs[std::size_t(operand.alias)];
    // If the input and output share a buffer, as bound caches do, the kernel works in place without a copy.
    if (from.address != result.address) copy(call, from, result);
    return result;
  }
  static void copy(Call& call, const Tensor& from, const Tensor& to) {
    constexpr std::size_t kChunk = 1 << 20;
    const std::size_t bytes = from.bytes();
    call.parallel((bytes + kChunk - 1) / kChunk, [&](std::size_t piece) {
      const std::size_t first = piece * kChunk;
      std::memcpy(to.data<char>() + first, from.data<const char>() + first, std::min(kChunk, bytes - first));
    });
  }

  const Op& op_;
  std::unique_ptr<Kernel> kernel_;
  Inputs constants_;
};

class Operator : public ort::OperatorTable {
 public:
  explicit Operator(const Op& op) : ort::OperatorTable(), op_(op) {
    using Table = const ort::OperatorTable*;
    version = ort::kVersion;
    name = [](Table t) { return of(t).name; };
    provider = [](Table) -> const char* { return nullptr; };
    input_count = [](Table t) { return of(t).inputs.size(); };
    output_count = [](Table t) { return of(t).outputs.size(); };
    input_type = [](Table t, std::size_t i) { return of(t).inputs[i].type; };
    output_type = [](Table t, std::size_t i) { return of(t).outputs[i].type; };
    input_kind = [](Table t, std::size_t i) { return of(t).is_variadic ? 2 : int(of(t).inputs[i].is_optional); };
    output_kind = [](Table t, std::size_t i) { return of(t).is_variadic ? 2 : int(of(t).outputs[i].is_optional); };
    input_memory = [](Table, std::size_t) { return 0; };
    variadic_input_min = variadic_output_min = [](Table) { return 1; };
    variadic_input_is_homogeneous = variadic_output_is_homogeneous = [](Table) { return 0; };
    create = [](Table t, const ort::Function*, const ort::KernelInfo* info, void** kernel) {
      *kernel = nullptr;
      return to_status([&] { *kernel = new LoadedNode(of(t), info); });
    };
    compute = [](void* kernel, ort::KernelContext* context) {
      return to_status([&] { static_cast<const LoadedNode*>(kernel)->compute(Call(context)); });
    };
    destroy = [](void* kernel) { delete static_cast<LoadedNode*>(kernel); };
  }

 private:
  static const Op& of(const ort::OperatorTable* table) { return static_cast<const Operator*>(table)->op_; }
  const Op& op_;
};

// Adds the operators to a session's options. With an unknown version of ONNX Runtime, it adds none, and the nodes'
// function bodies run instead.
inline ort::Status* add_operators(ort::Options* options, const ort::Base* base, const char* domain_name,
                                  const std::vector<Operator>& operators) {
  const char* version = base->get_version_string();
  if (version == nullptr || std::strncmp(version, "1.", 2) != 0) return nullptr;
  if (std::atoi(version + 2) < int(ort::kVersion)) return nullptr;
  const ort::Function* table = base->get_api(ort::kVersion);
  if (table == nullptr) return nullptr;
  ort::table = table;
  return to_status([&] {
    ort::Domain* domain = nullptr;  // never freed: sessions keep using it, for an unknown time
    check(ort::call(ort::kCreateCustomOpDomain, domain_name, &domain));
    for (const Operator& each : operators) {
      check(ort::call(ort::kCustomOpDomainAdd, domain, static_cast<const ort::OperatorTable*>(&each)));
    }
    check(ort::call(ort::kAddCustomOpDomain, options, domain));
  });
}

}  // namespace peagle
