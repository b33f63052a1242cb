// An operation as the caller of the engine gives it: the static description, known when the program is compiled, and
// the tensors of one run.
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
  // A receive from any source, or of any tag.
  static constexpr int kAnySource = -2;
  static constexpr int64_t kAnyTag = -3;
  Collective collective = Collective::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  bool mean = false;
  int64_t root = -1;
  std::string codec = "raw";
  std::string algorithm = "auto";
  bool mpi = false;               // uses MPI's own collectives (execution/library_path.h)
  bool staged = false;            // values lie on GPUs: one operation for each part (cuda/stage/stage.h)
  std::string communicator;       // name; empty: `groups` give the members
  std::vector<int64_t> groups;    // replica groups of global device ids, one after the other
  int64_t group_size = 0;
  std::vector<int64_t> counts;    // rows, for the v-variants
  std::vector<int64_t> pairs;
  int64_t tag = 0;                // of sendrecv: of the sent message
  int64_t recv_tag = 0;           // of sendrecv: of the received message
  int64_t site = 0;               // position of the call in its program's text
  bool reverse = false;
  bool ordered = false;           // matched by program order
  bool by_thread = false;         // program order of its own Python thread
  bool referenced = false;        // sends the difference to Call::refs
  bool feedback = false;          // a second result for each operand: the compression error
  bool carries = false;           // with feedback: Call::carried is added to the operands
  bool status = false;            // of a receive: an int32[2] follows the results, source and tag
  std::string shapes;             // of the operands, as text; equal on all ranks
  std::string recv_shapes;        // of a message that sendrecv receives
  std::string where;              // source line of the user's program
  std::string program;            // name of the program that the call is in
  std::string thread;             // and of the Python thread that made it; empty: the main thread

  // Whether it is matched as a message between two ranks, which its sender numbers (point_to_point_matching.h). A
  // sendrecv of programs that are the same on all ranks is matched by its call site.
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
  // The number of references for each operand. A rank that sends and receives has two: first for all sent operands,
  // then for all received ones.
  int ReferencesEach() const {
    const bool both = collective == Collective::kSendrecv || collective == Collective::kPermute;
    return referenced ? 1 + both : 0;
  }
  // Hash of the parameters that must agree between the ranks; for point to point, of the sent message's.
  uint64_t Signature() const;
  // The same for the received message.
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
  // Values that sender and receivers already share (OpSpec::ReferencesEach), with the types and sizes of the
  // operands, or for an allgather of its results. A result of a broadcast may alias its operand or its reference.
  std::vector<Tensor> refs;
  // Residuals of the previous call, with the shapes of the operands; the new residuals may alias them. With operands of
  // half types they may be float32; then all results are float32.
  std::vector<Tensor> carried;
  int64_t run_id = 0;             // the same for all calls of one launch of a program
  // Place of the launch in the user's Python program; empty if places are not compared.
  std::string place;
  uint32_t launched_by = 0;       // hash of the name of the Python thread that launches; 0: unknown
  int64_t device = 0;             // global device id
  int64_t part = 0;               // part of a call on a GPU (cuda/stage/parts.h); each part has its own sizes
};

}  // namespace jaxccomp
