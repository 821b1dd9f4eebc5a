// The part of ONNX Runtime's C interface that operators need. It is declared here because no wheel contains the header.
//
// OrtGetApiBase()->GetApi(version) returns a table of functions. Later versions only append to it, so the index of a
// function never changes. A number in a comment is the first minor version (ONNX Runtime 1.x) with the function. A
// wrong index would crash the process: plugins/cpu/self_test.py calls each function once, in a separate process.

namespace peagle {
namespace ort {

constexpr std::uint32_t kVersion = 18;  // requested from GetApi, and the layout of OperatorTable

using Function = void (*)();
struct Base {  // OrtApiBase
  const Function* (*get_api)(std::uint32_t version);
  const char* (*get_version_string)();
};

struct Status;  // null means success; the receiver releases any other
struct Value;
struct KernelInfo;     // a node, while its kernel is constructed
struct KernelContext;  // one call of the kernel
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
inline std::size_t size_of(int type) {  // in bytes; 0 for unsupported types
  switch (type) {
    case kFloat32: case kInt32: return 4;
    case kUint8: case kInt8: case kBool: return 1;
    case kFloat16: return 2;
    case kInt64: return 8;
    default: return 0;
  }
}

template <class Signature>
struct ApiFunction {
  int index;
};
constexpr ApiFunction<Status*(int code, const char* text)> kCreateStatus{0};
constexpr ApiFunction<int(const Status*)> kGetErrorCode{1};
constexpr ApiFunction<const char*(const Status*)> kGetErrorMessage{2};
constexpr ApiFunction<Status*(const char* name, Domain**)> kCreateCustomOpDomain{26};
constexpr ApiFunction<Status*(Domain*, const struct OperatorTable*)> kCustomOpDomainAdd{27};
constexpr ApiFunction<Status*(Options*, Domain*)> kAddCustomOpDomain{28};
constexpr ApiFunction<Status*(Value*, void** data)> kGetTensorMutableData{51};
constexpr ApiFunction<Status*(const TensorInfo*, int* type)> kGetTensorElementType{60};
constexpr ApiFunction<Status*(const TensorInfo*, std::size_t* count)> kGetDimensionsCount{61};
constexpr ApiFunction<Status*(const TensorInfo*, std::int64_t* sizes, std::size_t count)> kGetDimensions{62};
constexpr ApiFunction<Status*(const Value*, TensorInfo**)> kGetTensorTypeAndShape{65};
constexpr ApiFunction<Status*(const KernelInfo*, const char* name, float*)> kGetAttributeFloat{85};
constexpr ApiFunction<Status*(const KernelInfo*, const char* name, std::int64_t*)> kGetAttributeInt64{86};
constexpr ApiFunction<Status*(const KernelInfo*, const char* name, char* text, std::size_t* size)>
    kGetAttributeString{87};
constexpr ApiFunction<Status*(const KernelContext*, std::size_t*)> kGetInputCount{88};
constexpr ApiFunction<Status*(const KernelContext*, std::size_t*)> kGetOutputCount{89};
constexpr ApiFunction<Status*(const KernelContext*, std::size_t at, const Value**)> kGetInput{90};
constexpr ApiFunction<Status*(KernelContext*, std::size_t at, const std::int64_t* sizes, std::size_t count, Value**)>
    kGetOutput{91};
constexpr ApiFunction<void(Status*)> kReleaseStatus{93};
constexpr ApiFunction<void(TensorInfo*)> kReleaseTensorInfo{99};
constexpr ApiFunction<Status*(const KernelInfo*, std::size_t at, int* is_constant, const Value**)>
    kGetConstantInput{249};  // 15
constexpr ApiFunction<Status*(const KernelContext*, void (*work)(void*, std::size_t), std::size_t count,
                              std::size_t batches, void* user)>
    kParallelFor{274};  // 17

// OrtCustomOp with the fields of version 18. Optional functions may be null.
struct OperatorTable {
  std::uint32_t version;
  void* (*create_before_16)(const OperatorTable*, const Function*, const KernelInfo*);
  const char* (*name)(const OperatorTable*);
  const char* (*provider)(const OperatorTable*);  // null: the CPU execution provider
  int (*input_type)(const OperatorTable*, std::size_t);
  std::size_t (*input_count)(const OperatorTable*);
  int (*output_type)(const OperatorTable*, std::size_t);
  std::size_t (*output_count)(const OperatorTable*);
  void (*compute_before_16)(void* kernel, KernelContext*);
  void (*destroy)(void* kernel);
  int (*input_kind)(const OperatorTable*, std::size_t);  // 0: required, 1: optional, 2: variadic
  int (*output_kind)(const OperatorTable*, std::size_t);
  int (*input_memory)(const OperatorTable*, std::size_t);  // 0: the provider's memory
  int (*variadic_input_min)(const OperatorTable*);
  int (*variadic_input_is_homogeneous)(const OperatorTable*);
  int (*variadic_output_min)(const OperatorTable*);
  int (*variadic_output_is_homogeneous)(const OperatorTable*);
  Status* (*create)(const OperatorTable*, const Function*, const KernelInfo*, void** kernel);  // 16
  Status* (*compute)(void* kernel, KernelContext*);                                            // 16
  Status* (*infer_shapes)(const OperatorTable*, void* context);                                // 17
  int (*first_version)(const OperatorTable*);                                                  // 17
  int (*last_version)(const OperatorTable*);                                                   // 17
  std::size_t (*get_may_inplace)(int** inputs, int** outputs);                                 // 18
  void (*release_may_inplace)(int* inputs, int* outputs);                                      // 18
  std::size_t (*get_alias_map)(int** inputs, int** outputs);                                   // 18
  void (*release_alias_map)(int* inputs, int* outputs);                                        // 18
};
static_assert(sizeof(OperatorTable) == 26 * 8, "26 fields of eight bytes, on a 64-bit machine");

inline const Function* table = nullptr;  // of the ONNX Runtime that loaded this library

template <class Result, class... Formal, class... Actual>
Result call(ApiFunction<Result(Formal...)> function, Actual... arguments) {
  return reinterpret_cast<Result (*)(Formal...)>(table[function.index])(arguments...);
}

}  // namespace ort
}  // namespace peagle
