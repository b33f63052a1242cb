// What a caller of the engine hands over: the static description of an operation (known when
// its program is compiled) and the tensors of one run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective/algorithm.h"
#include "common/dtype.h"
#include "reduce/reduce.h"

namespace jaxccomp {

struct OpSpec {
  static constexpr int kNobody = -1;           // in place of a partner
  // Of a receive that takes what comes first, whoever sent it or whatever its tag.
  static constexpr int kAnySource = -2;
  static constexpr int64_t kAnyTag = -3;
  Collective collective = Collective::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  bool mean = false;
  int64_t root = -1;
  std::string codec = "raw";
  std::string algorithm = "auto";
  bool mpi = false;               // MPI's own collectives move them (execution/library_path.h)
  bool staged = false;            // values lie on GPUs: one operation for each part (cuda/stage/stage.h)
  std::string communicator;       // name; empty: `groups` say who takes part
  std::vector<int64_t> groups;    // replica groups of global device ids, one after the other
  int64_t group_size = 0;
  std::vector<int64_t> counts;    // rows, for the v-variants
  std::vector<int64_t> pairs;
  int64_t tag = 0;                // of sendrecv: of what it sends
  int64_t recv_tag = 0;           // of sendrecv: of what it receives
  int64_t site = 0;               // place of the call in its program's text
  bool reverse = false;
  bool ordered = false;           // matched by its place in program order
  bool by_thread = false;         // in the order of its own Python thread
  bool referenced = false;        // the difference to Call::refs travels
  bool feedback = false;          // a second result for each operand: the compression error
  bool carries = false;           // with feedback: Call::carried is added to the operands
  bool status = false;            // of a receive: an int32[2] follows the results, source and tag
  std::string shapes;             // of the operands, as text; equal on all ranks
  std::string recv_shapes;        // of a message that sendrecv receives
  std::string where;              // source line of the user's program
  std::string program;            // name of the program that the call is in
  std::string thread;             // and of the Python thread that made it; empty: the main thread

  // Whether it is matched as messages between two ranks, each of which its sender numbers and its
  // receiver matches (point_to_point_matching.h). A sendrecv of programs that are the same on all
  // ranks is matched by its place in them.
  bool PointToPoint() const {
    return collective == Collective::kSend || collective == Collective::kRecv ||
           (collective == Collective::kSendrecv && ordered);
  }
  // Of point to point: whom it sends to and receives from, kNobody for neither.
  int Destination() const;
  int Source() const;             // or kAnySource
  int64_t ReceiveTag() const { return collective == Collective::kRecv ? tag : recv_tag; }
  // Whether the results have values before any message comes: those of operands.
  bool StartsFromOperands() const {
    return collective == Collective::kSend || collective == Collective::kBarrier ||
           collective == Collective::kRaggedAlltoall;
  }
  bool VariableCounts() const { return !counts.empty(); }
  // How many references go with each operand: where a rank sends and receives with it, first all of what
  // is sent, then all of what is received.
  int ReferencesEach() const {
    const bool both = collective == Collective::kSendrecv || collective == Collective::kPermute;
    return referenced ? 1 + both : 0;
  }
  // Hash of all that must agree between the ranks of the operation; of point to point, of the message
  // that it sends.
  uint64_t Signature() const;
  // Of the message that it receives.
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
  // Values that sender and receivers hold already (OpSpec::ReferencesEach), of the types and sizes of
  // operands, those of an allgather of its results. A result of a broadcast may lie where its operand or
  // its reference does.
  std::vector<Tensor> refs;
  std::vector<Tensor> carried;    // residuals of the call before, like the operands or, for half types, in float32 (all
                                  // results then, too); the new residuals may lie there
  int64_t run_id = 0;             // one launch of one program has one run id
  // Where in the user's Python program the launch is made; empty when that is not compared.
  std::string place;
  uint32_t launched_by = 0;       // hash of the name of the Python thread that launches; 0: unknown
  int64_t device = 0;             // global device id
  int64_t part = 0;               // which part of a call on a GPU (cuda/stage/parts.h): each has sizes of its own
};

}  // namespace jaxccomp
