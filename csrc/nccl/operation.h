// What a collective is in terms of NCCL's functions. Values travel as they are.
#pragma once

#include <vector>

#include "matching/call.h"
#include "nccl/driver.h"
#include "nccl/library.h"

namespace jaxccomp::nccl {

// Ok when NCCL has the collective and, where it reduces, the reduction of those types; else the
// error says what it has.
Status CheckSupported(const OpSpec& spec, const std::vector<Tensor>& tensors);

// A place in a communicator.
struct Seat {
  int rank = 0;
  int ranks = 1;
};

// Queues the operation on call.stream: one NCCL group for all tensors. CheckSupported has passed.
// `comm` may be in progress afterwards. For send and recv the seats are those of the two partners.
Status Issue(const Library& library, CommHandle comm, const OpSpec& spec,
             Seat seat, const Call& call);
// What comes after it on the stream, once `comm` is no longer in progress: results that nobody
// writes are zeros, send's are its operands.
Status Complete(const Driver& driver, const OpSpec& spec, Seat seat, const Call& call);

}  // namespace jaxccomp::nccl
