// The interface that each op's kernel.cpp implements.
//
// A kernel is a class with the name of its op that derives from Kernel. Its constructor takes the op's attributes (a
// struct generated from the spec) and the node. A run consists of phases, and a phase of pieces. Any thread may execute
// any piece, in any order, each exactly once; a phase starts when the previous one is done. A kernel starts no threads
// and takes no locks, so it can run as a node, or as one of many steps of a fused node.

#include "tensor.h"

namespace peagle {

// A graph node, available while its kernel is constructed.
class Node {
 public:
  virtual ~Node() = default;
  // Attribute values; `fallback` is the default for an absent attribute.
  virtual std::string text(const char* name, const char* fallback) const = 0;
  virtual std::int64_t integer(const char* name, std::int64_t fallback) const = 0;
  virtual float number(const char* name, float fallback) const = 0;
  // Returns an input that is a constant of the graph; its memory outlives the kernel. For other inputs, returns an
  // absent tensor.
  virtual Tensor constant_or_none(std::size_t at) const = 0;

  Tensor constant(std::size_t at, const char* name) const {
    const Tensor result = constant_or_none(at);
    if (!result.is_there()) refuse("%s must be a constant of the graph", name);
    return result;
  }
};

// By position in the spec, including constants. An absent optional operand is a tensor for which is_there() is false.
using Inputs = std::vector<Tensor>;
using Outputs = std::vector<Tensor>;

// How the pieces of a phase map to tokens: not at all, one per row of all dimensions but the last, or one per [B, S] of
// [B, H, S, D].
enum class Tokens { kNone, kRows, kHeadsFirst };

// One execution of a kernel, with its inputs, outputs and scratch memory. It may be repeated over the same memory.
class Run {
 public:
  virtual ~Run() = default;
  // Reads the control inputs (ids, positions, lengths), and throws if they are invalid. Called before each execution,
  // before any other function.
  virtual void steer() {}
  // May depend on the shapes, the attributes and the control inputs.
  virtual int phases() const = 0;
  virtual std::size_t pieces(int phase) const = 0;
  // Returns other than kNone if the phase has one piece per token, and a piece reads only its own token of the
  // inputs and of the results of other phases. A fused node then needs no barrier before the phase.
  virtual Tokens tokens(int) const { return Tokens::kNone; }
  // The size of the scratch buffer: uninitialized, aligned to a cache line of 64 bytes, and valid for all phases.
  virtual std::size_t scratch_bytes() const { return 0; }
  virtual void use_scratch(void*) {}
  // Called concurrently; must not throw.
  virtual void work(int phase, std::size_t piece) = 0;
};

// Immutable after construction: threads may run it concurrently.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Returns true if inputs may be strided views (Tensor::strides).
  virtual bool takes_views() const { return false; }
  // Returns true if every phase of every run has one piece per token (Run::tokens).
  virtual bool is_token_wise() const { return false; }
  // Computes the shape of every output; outputs that alias an input already have its shape. Throws if the kernel does
  // not support the inputs' shapes or types. Results may be cached per set of input shapes.
  virtual void shapes(const Inputs& inputs, Shape* outputs) const = 0;
  // Makes a run without reading data: control inputs are valid from `steer` on, other inputs from `work` on. An output
  // that aliases an input initially contains the input's data.
  virtual std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const = 0;
};

// An input or output, as described by the op's spec.
struct Operand {
  int type;  // ort::kAnyType if several types are allowed
  bool is_optional;
  int alias;    // outputs: the input that is updated in place, or -1
  int same_as;  // outputs: the input with the same type, or -1
};

// An op with a kernel. sources.py generates the table of all ops.
struct Op {
  const char* name;
  std::vector<Operand> inputs, outputs;
  std::unique_ptr<Kernel> (*make)(const Node&);
  // One variadic input and one variadic output; the attribute "inputs" is the number of inputs.
  bool is_variadic = false;
};
// Throws for an unknown name. An op may be registered with several sets of types; returns one of these entries.
const Op& op_named(const std::string& name);
// Returns true if any registered entry of an op accepts the types of these inputs.
bool has_form(const char* name, const Inputs& inputs);

inline bool fits(const Op& op, const Inputs& inputs) {
  for (std::size_t i = 0; i < inputs.size(); i++) {
    const int type = op.inputs[i].type;
    if (inputs[i].is_there() && type != ort::kAnyType && inputs[i].type != type) return false;
  }
  return true;
}

template <class Made, class Attributes>
std::unique_ptr<Kernel> make_kernel(const Node& node) {
  return std::unique_ptr<Kernel>(new Made(Attributes(node), node));
}

}  // namespace peagle
