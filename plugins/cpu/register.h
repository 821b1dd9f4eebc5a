// An op's kernel as an operator of ONNX Runtime.  Which ops there are is made from their specs, and stands behind this.

namespace peagle {

struct Operand {
  int type;
  bool is_optional;
};

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

template <class Kernel, class Attributes>
class Operator : public ort::OperatorTable {
 public:
  Operator(const char* name, std::initializer_list<Operand> inputs, std::initializer_list<Operand> outputs)
      : ort::OperatorTable(), name_(name), inputs_(inputs), outputs_(outputs) {
    using Table = const ort::OperatorTable*;
    version = ort::kVersion;
    this->name = [](Table t) { return self(t)->name_; };
    provider = [](Table) -> const char* { return nullptr; };
    input_count = [](Table t) { return self(t)->inputs_.size(); };
    output_count = [](Table t) { return self(t)->outputs_.size(); };
    input_type = [](Table t, std::size_t i) { return self(t)->inputs_[i].type; };
    output_type = [](Table t, std::size_t i) { return self(t)->outputs_[i].type; };
    input_kind = [](Table t, std::size_t i) { return int(self(t)->inputs_[i].is_optional); };
    output_kind = [](Table t, std::size_t i) { return int(self(t)->outputs_[i].is_optional); };
    input_memory = [](Table, std::size_t) { return 0; };
    variadic_input_least = variadic_output_least = [](Table) { return 1; };
    variadic_input_is_of_one_type = variadic_output_is_of_one_type = [](Table) { return 1; };
    create = [](Table, const ort::Function*, const ort::KernelInfo* info, void** kernel) {
      *kernel = nullptr;
      return told([&] {
        const Node node(info);
        *kernel = new Kernel(Attributes(node), node);
      });
    };
    compute = [](void* kernel, ort::KernelContext* context) {
      return told([&] {
        Call call(context);
        static_cast<const Kernel*>(kernel)->run(call);
      });
    };
    destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  }

 private:
  static const Operator* self(const ort::OperatorTable* table) { return static_cast<const Operator*>(table); }
  const char* name_;
  const std::vector<Operand> inputs_, outputs_;
};

// Adds the operators to a session's options.  An ONNX Runtime that is not one we know gets none: bodies run there.
inline ort::Status* add_operators(ort::Options* options, const ort::Base* base, const char* domain_name,
                                  std::initializer_list<const ort::OperatorTable*> operators) {
  const char* version = base->get_version_string();
  if (version == nullptr || std::strncmp(version, "1.", 2) != 0) return nullptr;
  if (std::atoi(version + 2) < int(ort::kVersion)) return nullptr;
  const ort::Function* table = base->get_api(ort::kVersion);
  if (table == nullptr) return nullptr;
  ort::table = table;
  return told([&] {
    ort::Domain* domain = nullptr;  // sessions go on reading it, and say to nobody when the last is gone
    check(ort::call(ort::kCreateCustomOpDomain, domain_name, &domain));
    for (const ort::OperatorTable* each : operators) check(ort::call(ort::kCustomOpDomainAdd, domain, each));
    check(ort::call(ort::kAddCustomOpDomain, options, domain));
  });
}

}  // namespace peagle
