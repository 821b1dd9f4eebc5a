// A minimal ONNX Runtime, appended to the kernel source to form a program for machines without ONNX Runtime.
//
// It provides the API functions that the kernels use. The program makes and runs nodes as requested on standard input,
// and answers on standard output; __init__.py writes the requests. Tensors are not aligned to cache lines, outputs
// start as garbage, and guard bytes detect writes outside of tensors.

#include <thread>

namespace peagle {
namespace ort {

struct Status {
  int code;
  std::string text;
};

struct Value {
  static constexpr std::size_t kMisalignment = 16, kGuard = 64;
  static constexpr char kGarbage = char(0xcd), kUntouched = char(0xa5);

  int type = 0;
  std::vector<std::int64_t> sizes;
  std::vector<char> memory;
  std::size_t first = 0;

  Value(int type, std::vector<std::int64_t> sizes) : type(type), sizes(std::move(sizes)) {
    memory.assign(64 + kMisalignment + bytes() + kGuard, kUntouched);
    first = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64 + kMisalignment;
    memory.resize(first + bytes() + kGuard, kUntouched);
    std::memset(data(), kGarbage, bytes());
  }
  std::size_t bytes() const {
    constexpr int kBFloat16 = 16;  // accepted as an input by some kernels; no kernel outputs it
    std::size_t product = type == kBFloat16 ? 2 : size_of(type);
    for (const std::int64_t size : sizes) product *= std::size_t(size);
    return product;
  }
  char* data() { return memory.data() + first; }
  bool has_intact_guards() const {
    const auto untouched = [](char each) { return each == kUntouched; };
    return std::all_of(memory.begin() + std::ptrdiff_t(first + bytes()), memory.end(), untouched) &&
           std::all_of(memory.begin(), memory.begin() + std::ptrdiff_t(first), untouched);
  }
};
using SharedValue = std::shared_ptr<Value>;

struct TensorInfo {
  const Value* value;
};

struct Attribute {
  std::string name, text;
  std::int64_t whole;
  float number;
  char kind;  // t(ext), w(hole number) or n(umber)
};

struct KernelInfo {
  std::string op;
  std::vector<Attribute> attributes;
  std::vector<char> kinds;  // of inputs: a(bsent), f(ed) or c(onstant)
  std::vector<SharedValue> inputs;
  std::vector<int> types;  // of inputs
  std::vector<char> is_wanted;  // of outputs
  int threads;

  const Attribute* attribute(const char* name, char kind) const {
    for (const Attribute& each : attributes) {
      if (each.name == name && each.kind == kind) return &each;
    }
    return nullptr;
  }
};

struct KernelContext {
  const KernelInfo* info;
  std::vector<SharedValue> inputs, outputs;
  std::vector<std::int32_t> aliases;  // of outputs: the input with the same memory, or -1
  const struct OperatorTable* op;
};

struct Domain {};
struct Options {};

std::vector<const OperatorTable*> operators;
std::vector<Function> api_functions(400, +[] { std::abort(); });

template <class Signature>
void provide(ApiFunction<Signature> function, Signature* with) {
  api_functions[std::size_t(function.index)] = reinterpret_cast<Function>(with);
}

Status* make_error(const char* text) { return new Status{1, text}; }

void provide_all() {
  provide(kCreateStatus, +[](int code, const char* text) { return new Status{code, text}; });
  provide(kGetErrorCode, +[](const Status* status) { return status->code; });
  provide(kGetErrorMessage, +[](const Status* status) { return status->text.c_str(); });
  provide(kReleaseStatus, +[](Status* status) { delete status; });
  provide(kCreateCustomOpDomain,
          +[](const char*, Domain** domain) -> Status* { return *domain = new Domain, nullptr; });
  provide(kAddCustomOpDomain, +[](Options*, Domain*) -> Status* { return nullptr; });
  provide(kCustomOpDomainAdd, +[](Domain*, const OperatorTable* op) -> Status* {
    operators.push_back(op);
    return nullptr;
  });
  provide(kGetTensorMutableData, +[](Value* value, void** data) -> Status* { return *data = value->data(), nullptr; });
  provide(kGetTensorTypeAndShape, +[](const Value* value, TensorInfo** info) -> Status* {
    return *info = new TensorInfo{value}, nullptr;
  });
  provide(kReleaseTensorInfo, +[](TensorInfo* info) { delete info; });
  provide(kGetTensorElementType,
          +[](const TensorInfo* info, int* type) -> Status* { return *type = info->value->type, nullptr; });
  provide(kGetDimensionsCount,
          +[](const TensorInfo* info, std::size_t* count) -> Status* {
            return *count = info->value->sizes.size(), nullptr;
          });
  provide(kGetDimensions, +[](const TensorInfo* info, std::int64_t* sizes, std::size_t count) -> Status* {
    std::copy_n(info->value->sizes.begin(), count, sizes);
    return nullptr;
  });
  provide(kGetAttributeFloat, +[](const KernelInfo* info, const char* name, float* number) -> Status* {
    const Attribute* found = info->attribute(name, 'n');
    return found == nullptr ? make_error("no such number") : (*number = found->number, nullptr);
  });
  provide(kGetAttributeInt64, +[](const KernelInfo* info, const char* name, std::int64_t* whole) -> Status* {
    const Attribute* found = info->attribute(name, 'w');
    return found == nullptr ? make_error("no such whole number") : (*whole = found->whole, nullptr);
  });
  provide(kGetAttributeString, +[](const KernelInfo* info, const char* name, char* text, std::size_t* size) -> Status* {
    const Attribute* found = info->attribute(name, 't');
    if (found == nullptr) return make_error("no such text");
    *size = found->text.size() + 1;
    if (text != nullptr) std::memcpy(text, found->text.c_str(), *size);
    return nullptr;
  });
  provide(kGetConstantInput,
          +[](const KernelInfo* info, std::size_t at, int* is_constant, const Value** value) -> Status* {
            *is_constant = at < info->kinds.size() && info->kinds[at] == 'c';
            *value = *is_constant ? info->inputs[at].get() : nullptr;
            return nullptr;
          });
  provide(kGetInputCount, +[](const KernelContext* context, std::size_t* count) -> Status* {
    return *count = context->inputs.size(), nullptr;
  });
  provide(kGetOutputCount, +[](const KernelContext* context, std::size_t* count) -> Status* {
    return *count = context->info->is_wanted.size(), nullptr;
  });
  provide(kGetInput, +[](const KernelContext* context, std::size_t at, const Value** value) -> Status* {
    return *value = context->inputs[at].get(), nullptr;
  });
  provide(kGetOutput, +[](KernelContext* context, std::size_t at, const std::int64_t* sizes, std::size_t count,
                         Value** value) -> Status* {
    *value = nullptr;
    if (!context->info->is_wanted[at]) return nullptr;
    SharedValue& output = context->outputs[at];
    const std::vector<std::int64_t> wanted(sizes, sizes + count);
    const int alias = context->aliases[at];
    if (alias >= 0) {
      output = context->inputs[std::size_t(alias)];
    } else if (!output || output->sizes != wanted) {
      int type = context->op->output_type(context->op, context->op->output_kind(context->op, 0) == 2 ? 0 : at);
      for (std::size_t i = 0; type == kAnyType && i < context->inputs.size(); i++) {
        if (context->op->input_kind(context->op, 0) == 2) type = kFloat32;  // all outputs of a FusedRegion
        else if (context->op->input_type(context->op, i) == kAnyType) type = context->inputs[i]->type;
      }
      output = std::make_shared<Value>(type, wanted);
    }
    if (output->sizes != wanted) return make_error("an output in place of an input has another shape");
    *value = output.get();
    return nullptr;
  });
  provide(kParallelFor, +[](const KernelContext* context, void (*work)(void*, std::size_t), std::size_t count,
                            std::size_t, void* user) -> Status* {
    std::atomic<std::size_t> next{0};
    const auto participate = [&] {
      for (std::size_t at; (at = next++) < count;) work(user, at);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < context->info->threads; i++) others.emplace_back(participate);
    participate();
    for (std::thread& each : others) each.join();
    return nullptr;
  });
}

// ------------------------------------------------------------------------------------------------------------ requests

void get(void* to, std::size_t bytes) {
  if (std::fread(to, 1, bytes, stdin) != bytes) std::exit(0);  // end of the requests
}
template <class Number>
Number get() {
  Number number;
  get(&number, sizeof number);
  return number;
}
std::string get_text() {
  std::string text(get<std::uint32_t>(), '\0');
  get(&text[0], text.size());
  return text;
}
SharedValue get_tensor() {
  const int type = get<std::int32_t>();
  std::vector<std::int64_t> sizes(get<std::uint32_t>());
  for (std::int64_t& size : sizes) size = get<std::int64_t>();
  const SharedValue value = std::make_shared<Value>(type, std::move(sizes));
  get(value->data(), value->bytes());
  return value;
}

void put(const void* from, std::size_t bytes) { std::fwrite(from, 1, bytes, stdout); }
template <class Number>
void put(Number number) {
  put(&number, sizeof number);
}
void put_text(const std::string& text) {
  put(std::uint32_t(text.size()));
  put(text.data(), text.size());
}
void put_tensor(Value& value) {
  put(std::int32_t(value.type));
  put(std::uint32_t(value.sizes.size()));
  for (const std::int64_t size : value.sizes) put(size);
  put(value.data(), value.bytes());
}

struct HostNode {
  KernelInfo info;
  const OperatorTable* op = nullptr;
  void* kernel = nullptr;
  KernelContext context;
};
std::vector<std::unique_ptr<HostNode>> nodes;

const OperatorTable* operator_for(const KernelInfo& info) {
  for (const OperatorTable* op : operators) {
    if (info.op != op->name(op)) continue;
    bool fits = true;
    const bool is_variadic = op->input_kind(op, 0) == 2;
    for (std::size_t i = 0; i < info.types.size() && !is_variadic; i++) {
      const int type = op->input_type(op, i);
      fits = fits && (info.kinds[i] == 'a' || type == kAnyType || type == info.types[i]);
    }
    if (fits) return op;
  }
  refuse("no kernel of %s takes these types", info.op.c_str());
}

void throw_error(Status* status) {
  if (status == nullptr) return;
  Refusal refusal{status->text};
  delete status;
  throw refusal;
}

void handle_make() {
  auto node = std::make_unique<HostNode>();
  KernelInfo& info = node->info;
  setenv("PEAGLE_CPU_INSTRUCTIONS", get_text().c_str(), 1);
  info.threads = get<std::int32_t>();
  info.op = get_text();
  info.attributes.resize(get<std::uint32_t>());
  for (Attribute& each : info.attributes) {
    each.name = get_text();
    each.kind = get<char>();
    if (each.kind == 't') each.text = get_text();
    if (each.kind == 'w') each.whole = get<std::int64_t>();
    if (each.kind == 'n') each.number = get<float>();
  }
  const auto count = get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; i++) {
    info.kinds.push_back(get<char>());
    info.types.push_back(info.kinds.back() == 'f' ? get<std::int32_t>() : 0);
    info.inputs.push_back(info.kinds.back() == 'c' ? get_tensor() : nullptr);
    if (info.inputs.back()) info.types.back() = info.inputs.back()->type;
  }
  info.is_wanted.resize(get<std::uint32_t>());
  for (char& each : info.is_wanted) each = get<char>();
  node->op = operator_for(info);
  throw_error(node->op->create(node->op, api_functions.data(), &info, &node->kernel));
  nodes.push_back(std::move(node));
  put('y');
  put(std::uint32_t(nodes.size() - 1));
}

void handle_run() {
  HostNode& node = *nodes.at(get<std::uint32_t>());
  const bool is_bound = get<char>() != 0;  // reuse the memory of the last run
  KernelContext& context = node.context;
  const std::vector<SharedValue> before = context.inputs;
  context.info = &node.info;
  context.op = node.op;
  context.inputs = node.info.inputs;
  for (std::size_t i = 0; i < context.inputs.size(); i++) {
    if (node.info.kinds[i] != 'f') continue;
    context.inputs[i] = get_tensor();
    if (is_bound && i < before.size() && before[i] && before[i]->sizes == context.inputs[i]->sizes) {
      std::memcpy(before[i]->data(), context.inputs[i]->data(), before[i]->bytes());
      context.inputs[i] = before[i];
    }
  }
  if (!is_bound) context.outputs.clear();
  context.outputs.resize(node.info.is_wanted.size());
  context.aliases.clear();
  for (std::size_t i = 0; i < context.outputs.size(); i++) context.aliases.push_back(get<std::int32_t>());
  throw_error(node.op->compute(node.kernel, &context));
  for (const auto& list : {context.inputs, context.outputs}) {
    for (const SharedValue& each : list) {
      if (each && !each->has_intact_guards()) refuse("%s wrote where no tensor is", node.info.op.c_str());
    }
  }
  put('y');
  for (std::size_t i = 0; i < context.outputs.size(); i++) {
    if (node.info.is_wanted[i]) put_tensor(*context.outputs[i]);
  }
}

}  // namespace ort
}  // namespace peagle

int main() {
  using namespace peagle::ort;
  provide_all();
  const Base base = {[](std::uint32_t) -> const Function* { return api_functions.data(); },
                                  [] { return "1.18.0"; }};
  Options options;
  throw_error(RegisterCustomOps(&options, &base));
  for (;;) {
    try {
      switch (get<char>()) {
        case 'i':  // the default instruction set
          unsetenv("PEAGLE_CPU_INSTRUCTIONS");
          put('y');
          put_text(peagle_instructions());
          break;
        case 'm': handle_make(); break;
        case 'r': handle_run(); break;
        default: return 1;
      }
    } catch (const peagle::Refusal& refusal) {
      put('n');
      put_text(refusal.why);
    }
    std::fflush(stdout);
  }
}
