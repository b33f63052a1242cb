// An operation as the caller of the engine describes it: OpSpec, known when the program is compiled, and Call, with the
// tensors of one run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective/algorithm.h"
#include "common/dtype.h"
#include "reduce/reduce.h"

namespace jaxccomp {

struct OpSpec {
  static constexpr int kNobody = -1;           // no partner
  // Wildcards of a receive.
  static constexpr int kAnySource = -2;
  static constexpr int64_t kAnyTag = -3;
  Collective collective = Collective::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  bool mean = false;
  int64_t root = -1;
  std::string codec = "raw";
  std::string algorithm = "auto";
  bool mpi = false;               // uses MPI's own collectives (execution/library_path.h)
  bool staged = false;            // values are on GPUs: one operation for each part (cuda/stage/stage.h)
  std::string communicator;       // name; empty: `groups` give the members
  std::vector<int64_t> groups;    // replica groups of global device ids, one after the other
  int64_t group_size = 0;
  std::vector<int64_t> counts;    // rows, for the v-variants
  std::vector<int64_t> pairs;     // permute: source and destination of each pair; sendrecv: destination, source; send,
                                  // recv: the other rank
  int64_t tag = 0;                // of sendrecv: of the sent message
  int64_t recv_tag = 0;           // of sendrecv: of the received message
  int64_t site = 0;               // position of the call in its program's text
  bool reverse = false;
  bool ordered = false;           // matched by program order
  bool by_thread = false;         // program order of its own Python thread
  bool has_ref = false;        // sends the difference to Call::refs
  bool feedback = false;          // a second result for each operand: the compression error
  bool adds_residual = false;           // with feedback: Call::residuals_in is added to the operands
  bool status = false;            // of a receive: an int32[2] follows the results, source and tag
  std::string shapes;             // of the operands, as text; equal on all ranks
  std::string recv_shapes;        // of a message that sendrecv receives
  std::string where;              // source line of the user's program
  std::string program;            // name of the program that the call is in
  std::string thread;             // name of the Python thread that compiled the program; empty: the main thread

  // Whether the operation is matched by source, tag and order of sending (point_to_point_matching.h). A sendrecv that
  // is not `ordered` is matched by its call site.
  bool PointToPoint() const {
    return collective == Collective::kSend || collective == Collective::kRecv ||
           (collective == Collective::kSendrecv && ordered);
  }
  // Destination and source of a point-to-point operation; kNobody if it has none.
  int Destination() const;
  int Source() const;             // or kAnySource
  int64_t ReceiveTag() const { return collective == Collective::kRecv ? tag : recv_tag; }
  // Whether the results start with the values of operands, before any message comes.
  bool StartsFromOperands() const {
    return collective == Collective::kSend || collective == Collective::kBarrier ||
           collective == Collective::kRaggedAlltoall;
  }
  bool VariableCounts() const { return !counts.empty(); }
  // Returns the number of references for each operand. A rank that sends and receives has two: Call::refs holds first
  // the references of all sent operands, then the references of all received ones.
  int ReferencesEach() const {
    const bool both = collective == Collective::kSendrecv || collective == Collective::kPermute;
    return has_ref ? 1 + both : 0;
  }
  // Returns a hash of the parameters that must agree between the ranks. For point to point these describe the sent
  // message.
  uint64_t Signature() const;
  // Returns the same hash for the received message.
  uint64_t ReceiveSignature() const;
  // "allreduce(sum, float32[1024], codec=raw) at train.py:41".
  std::string ToString() const;

 private:
  uint64_t MessageSignature(const std::string& message_shapes) const;
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t rows = 1;               // extent of the first axis (1 for scalars)
  int64_t bytes = 0;              // of all rows
};

struct Call {
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;    // with feedback: the results, then the residuals
  // Delta bases: values that sender and receivers already share (OpSpec::ReferencesEach). They have the types and sizes
  // of the operands; for an allgather, of the results. A result of a broadcast may alias its operand or its reference.
  std::vector<Tensor> refs;
  // Residuals of the previous call, with the shapes of the operands; the new residuals may alias them. If the operands
  // have a half type, the residuals may be float32; then all results are float32.
  std::vector<Tensor> residuals_in;
  int64_t run_id = 0;             // the same for all calls of one launch of a program
  // Place of the launch in the user's Python program; empty if places are not compared.
  std::string place;
  uint32_t launched_by = 0;       // hash of the name of the Python thread that launches; 0: unknown
  int64_t device = 0;             // global device id
  int64_t part = 0;               // part of a call on a GPU (cuda/stage/parts.h); each part has its own sizes
};

}  // namespace jaxccomp
