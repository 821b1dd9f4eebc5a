// ONNX Runtime's C interface: as much of it as an operator needs, written down by hand, for its header is in no wheel.
//
// OrtGetApiBase()->GetApi(version) gives a table of functions.  Later versions add to its end and change nothing before
// it, so the position of a function holds for ever; the number behind one is the first version (ONNX Runtime 1.x) that
// has it.  A position that is wrong would end the process: plugins/cpu/self_test.py tries each in a process of its own.

namespace peagle {
namespace ort {

constexpr std::uint32_t kVersion = 18;  // that is asked for, and that `OperatorTable` is written in

using Function = void (*)();
struct Base {  // OrtApiBase
  const Function* (*get_api)(std::uint32_t version);
  const char* (*get_version_string)();
};

struct Status;  // null is success; whoever receives another releases it
struct Value;
struct KernelInfo;     // a node, while its kernel is made
struct KernelContext;  // one run of it
struct TensorInfo;
struct Domain;
struct Options;

enum Type : int {
  kAnyType = 0,
  kFloat32 = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kFloat16 = 10
};
inline std::size_t size_of(int type) {  // bytes of a number; 0 of types that no kernel has
  switch (type) {
    case kFloat32: case kInt32: return 4;
    case kUint8: case kInt8: case kBool: return 1;
    case kFloat16: return 2;
    case kInt64: return 8;
    default: return 0;
  }
}

template <class Signature>
struct At {
  int position;
};
constexpr At<Status*(int code, const char* text)> kCreateStatus{0};
constexpr At<int(const Status*)> kGetErrorCode{1};
constexpr At<const char*(const Status*)> kGetErrorMessage{2};
constexpr At<Status*(const char* name, Domain**)> kCreateCustomOpDomain{26};
constexpr At<Status*(Domain*, const struct OperatorTable*)> kCustomOpDomainAdd{27};
constexpr At<Status*(Options*, Domain*)> kAddCustomOpDomain{28};
constexpr At<Status*(Value*, void** data)> kGetTensorMutableData{51};
constexpr At<Status*(const TensorInfo*, int* type)> kGetTensorElementType{60};
constexpr At<Status*(const TensorInfo*, std::size_t* count)> kGetDimensionsCount{61};
constexpr At<Status*(const TensorInfo*, std::int64_t* sizes, std::size_t count)> kGetDimensions{62};
constexpr At<Status*(const Value*, TensorInfo**)> kGetTensorTypeAndShape{65};
constexpr At<Status*(const KernelInfo*, const char* name, float*)> kGetAttributeFloat{85};
constexpr At<Status*(const KernelInfo*, const char* name, std::int64_t*)> kGetAttributeInt64{86};
constexpr At<Status*(const KernelInfo*, const char* name, char* text, std::size_t* size)> kGetAttributeString{87};
constexpr At<Status*(const KernelContext*, std::size_t*)> kGetInputCount{88};
constexpr At<Status*(const KernelContext*, std::size_t*)> kGetOutputCount{89};
constexpr At<Status*(const KernelContext*, std::size_t at, const Value**)> kGetInput{90};
constexpr At<Status*(KernelContext*, std::size_t at, const std::int64_t* sizes, std::size_t count, Value**)>
    kGetOutput{91};
constexpr At<void(Status*)> kReleaseStatus{93};
constexpr At<void(TensorInfo*)> kReleaseTensorInfo{99};
constexpr At<Status*(const KernelInfo*, std::size_t at, int* is_constant, const Value**)> kGetConstantInput{249};  // 15
constexpr At<Status*(const KernelContext*, void (*work)(void*, std::size_t), std::size_t count, std::size_t batches,
                     void* user)>
    kParallelFor{274};  // 17

// What describes an operator: OrtCustomOp, in the fields that `version` 18 has.  Null where an answer may be left out.
struct OperatorTable {
  std::uint32_t version;
  void* (*create_before_16)(const OperatorTable*, const Function*, const KernelInfo*);
  const char* (*name)(const OperatorTable*);
  const char* (*provider)(const OperatorTable*);  // null is the CPU's
  int (*input_type)(const OperatorTable*, std::size_t);
  std::size_t (*input_count)(const OperatorTable*);
  int (*output_type)(const OperatorTable*, std::size_t);
  std::size_t (*output_count)(const OperatorTable*);
  void (*compute_before_16)(void* kernel, KernelContext*);
  void (*destroy)(void* kernel);
  int (*input_kind)(const OperatorTable*, std::size_t);  // 0 is required, 1 optional
  int (*output_kind)(const OperatorTable*, std::size_t);
  int (*input_memory)(const OperatorTable*, std::size_t);  // 0 is the provider's
  int (*variadic_input_least)(const OperatorTable*);
  int (*variadic_input_is_of_one_type)(const OperatorTable*);
  int (*variadic_output_least)(const OperatorTable*);
  int (*variadic_output_is_of_one_type)(const OperatorTable*);
  Status* (*create)(const OperatorTable*, const Function*, const KernelInfo*, void** kernel);  // 16
  Status* (*compute)(void* kernel, KernelContext*);                                            // 16
  Status* (*infer_shapes)(const OperatorTable*, void* context);                                // 17
  int (*first_version)(const OperatorTable*);                                                  // 17
  int (*last_version)(const OperatorTable*);                                                   // 17
  std::size_t (*may_be_in_place)(int** inputs, int** outputs);                                 // 18
  void (*release_in_place)(int* inputs, int* outputs);                                         // 18
  std::size_t (*must_be_in_place)(int** inputs, int** outputs);                                // 18
  void (*release_must)(int* inputs, int* outputs);                                             // 18
};
static_assert(sizeof(OperatorTable) == 26 * 8, "26 fields of eight bytes: a machine of 64 bits");

inline const Function* table = nullptr;  // of the ONNX Runtime that loaded this library

template <class Result, class... Formal, class... Actual>
Result call(At<Result(Formal...)> function, Actual... arguments) {
  return reinterpret_cast<Result (*)(Formal...)>(table[function.position])(arguments...);
}

}  // namespace ort
}  // namespace peagle
