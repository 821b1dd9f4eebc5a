// An op's kernel as an operator of ONNX Runtime.  Which ops there are is made from their specs, and stands behind this.

#include "call.h"

namespace peagle {

// No exception leaves the library.
template <class Work>
ort::Status* told(const Work& work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const Refusal& refusal) {
    return ort::call(ort::kCreateStatus, 1, refusal.why.c_str());
  } catch (const std::exception& error) {  // no memory
    return ort::call(ort::kCreateStatus, 1, error.what());
  }
}

// The kernel of a node, and those of its inputs that are the same in every run.
class LoadedNode {
 public:
  LoadedNode(const Op& op, const ort::KernelInfo* info) : op_(op) {
    const GivenNode node(info);
    const std::int64_t given = op.is_variadic ? node.whole("inputs", 0) : std::int64_t(op.inputs.size());
    if (given < 0 || given > kMostOperands) refuse("a node of %lld inputs", static_cast<long long>(given));
    constants_.resize(std::size_t(given));
    for (std::size_t i = 0; i < constants_.size(); i++) constants_[i] = node.constant_or_none(i);
    kernel_ = op.make(node);
  }

  void compute(Call call) const {
    Inputs inputs(constants_);
    for (std::size_t i = 0; i < inputs.size(); i++) {
      if (inputs[i].is_there()) continue;
      inputs[i] = call.input(i);
      if (!inputs[i].is_there() && (op_.is_variadic || !op_.inputs[i].is_optional)) {
        refuse("an input that the kernel needs is absent");
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
  static constexpr std::int64_t kMostOperands = 1 << 16;

  Tensor output(Call& call, std::size_t at, const Shape& shape, const Inputs& inputs) const {
    const Operand& operand = op_.outputs[op_.is_variadic ? 0 : at];
    const int type = operand.same_as >= 0 ? inputs[std::size_t(operand.same_as)].type : operand.type;
    const Tensor result = call.output(at, shape, type);
    if (operand.alias < 0 || !result.is_there()) return result;
    const Tensor& from = inputs[std::size_t(operand.alias)];
    // One buffer on both sides, as caches are bound, is written in place.
    if (from.address != result.address) copy(call, from, result);
    return result;
  }
  static void copy(Call& call, const Tensor& from, const Tensor& to) {
    constexpr std::size_t kPiece = 1 << 20;
    const std::size_t bytes = from.bytes();
    call.parallel((bytes + kPiece - 1) / kPiece, [&](std::size_t piece) {
      const std::size_t first = piece * kPiece;
      std::memcpy(to.data<char>() + first, from.data<const char>() + first, std::min(kPiece, bytes - first));
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
    variadic_input_least = variadic_output_least = [](Table) { return 1; };
    variadic_input_is_of_one_type = variadic_output_is_of_one_type = [](Table) { return 0; };
    create = [](Table t, const ort::Function*, const ort::KernelInfo* info, void** kernel) {
      *kernel = nullptr;
      return told([&] { *kernel = new LoadedNode(of(t), info); });
    };
    compute = [](void* kernel, ort::KernelContext* context) {
      return told([&] { static_cast<const LoadedNode*>(kernel)->compute(Call(context)); });
    };
    destroy = [](void* kernel) { delete static_cast<LoadedNode*>(kernel); };
  }

 private:
  static const Op& of(const ort::OperatorTable* table) { return static_cast<const Operator*>(table)->op_; }
  const Op& op_;
};

// Adds the operators to a session's options.  An ONNX Runtime that is not one we know gets none: bodies run there.
inline ort::Status* add_operators(ort::Options* options, const ort::Base* base, const char* domain_name,
                                  const std::vector<Operator>& operators) {
  const char* version = base->get_version_string();
  if (version == nullptr || std::strncmp(version, "1.", 2) != 0) return nullptr;
  if (std::atoi(version + 2) < int(ort::kVersion)) return nullptr;
  const ort::Function* table = base->get_api(ort::kVersion);
  if (table == nullptr) return nullptr;
  ort::table = table;
  return told([&] {
    ort::Domain* domain = nullptr;  // sessions go on reading it, and say to nobody when the last is gone
    check(ort::call(ort::kCreateCustomOpDomain, domain_name, &domain));
    for (const Operator& each : operators) {
      check(ort::call(ort::kCustomOpDomainAdd, domain, static_cast<const ort::OperatorTable*>(&each)));
    }
    check(ort::call(ort::kAddCustomOpDomain, options, domain));
  });
}

}  // namespace peagle
