// What an op's kernel.cpp is written against.
//
// A kernel is a class that is called like its op and derives from Kernel.  Its constructor takes the op's attributes (a
// struct that is made from the spec) and the node.  A run of it is a list of phases, a phase has pieces; any thread does
// any piece, in any order, each once; a phase begins when the one before is done.  No thread of a kernel's own, no lock:
// so that the same kernel runs as a node, and among others inside of one.

#include "tensor.h"

namespace peagle {

// A node, while its kernel is made.
class Node {
 public:
  virtual ~Node() = default;
  // Attributes; one that is absent has the default of the spec.
  virtual std::string text(const char* name, const char* otherwise) const = 0;
  virtual std::int64_t whole(const char* name, std::int64_t otherwise) const = 0;
  virtual float number(const char* name, float otherwise) const = 0;
  // An input that is a constant of the graph, which stays where it is for as long as the kernel lives; else one that is
  // not there.
  virtual Tensor constant_or_none(std::size_t at) const = 0;

  Tensor constant(std::size_t at, const char* name) const {
    const Tensor result = constant_or_none(at);
    if (!result.is_there()) refuse("%s must be a constant of the graph", name);
    return result;
  }
};

// By position in the spec; what is optional and absent is not there.  Constants are among the inputs, too.
using Inputs = std::vector<Tensor>;
using Outputs = std::vector<Tensor>;

enum class Tokens { kNotAlone, kRows, kHeadsFirst };

// One run of a kernel: inputs, outputs and scratch of its own.  It may be done again, over the same memory.
class Run {
 public:
  virtual ~Run() = default;
  // Reads the numbers of inputs that steer (ids, positions, lengths), and refuses them by throwing: before each time that
  // the run is done, and before anything else is asked of it.
  virtual void steer() {}
  // Known from the shapes, the attributes and what steers.
  virtual int phases() const = 0;
  virtual std::size_t pieces(int phase) const = 0;
  // Whether a phase has a piece for every token, that is for every place of all dimensions but the last, or for [B, S] of
  // [B, H, S, D], and a piece reads of its inputs, and of what other phases made, its own token alone.  Inside of a larger
  // node such a phase needs not wait for all pieces of the one before.
  virtual Tokens tokens(int) const { return Tokens::kNotAlone; }
  // Memory that is there, and not cleared, from before the first phase until the last is done; 64 bytes are a cache line.
  virtual std::size_t scratch_bytes() const { return 0; }
  virtual void use_scratch(void*) {}
  // Never throws, and is called by several threads at once.
  virtual void work(int phase, std::size_t piece) = 0;
};

// Immutable once it is made: several threads may run it at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Whether inputs may be views: see Tensor::strides.
  virtual bool takes_views() const { return false; }
  // Whether every phase of every run has a piece for each token: see Run::tokens.
  virtual bool is_token_wise() const { return false; }
  // The shape of every output, by position; those that alias an input have its shape already.  Refuses shapes and types
  // that the kernel cannot take, by throwing.  Is not asked again for inputs of the same shapes.
  virtual void shapes(const Inputs& inputs, Shape* outputs) const = 0;
  // Makes a run, and reads no numbers: those that steer are there before `steer`, others before `work`.  An output that
  // aliases an input holds what that held.
  virtual std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const = 0;
};

// What a spec says of an input or an output.
struct Operand {
  int type;  // ort::kAnyType: one of several
  bool is_optional;
  int alias;    // of an output: the input whose buffer it is written into, or -1
  int same_as;  // of an output: the input whose type it has, or -1
};

// An op that has a kernel; all of them are listed behind the kernels, by a text that is made from the specs.
struct Op {
  const char* name;
  std::vector<Operand> inputs, outputs;
  std::unique_ptr<Kernel> (*make)(const Node&);
  // Whether it has one input and one output of any number of tensors; the attribute "inputs" says how many are given.
  bool is_variadic = false;
};
const Op& op_named(const std::string& name);  // refuses; one of its forms where there are several
// Whether an op is there for inputs of these types, which need not be those of the form that `op_named` gives.
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
