// Tests MPI requests of several lists by one call of MPI. Each call makes progress once, which costs a system call if
// a peer is on another host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "transport/mpi/mpi_library.h"

namespace jaxccomp {

struct MpiRequest {
  MpiHandle handle = 0;
  bool over = false;   // completed; `handle` is invalid
  int error = 0;       // MPI's error code; 0: success
};

class MpiBatch {
 public:
  // Adds the requests of up to kListed items, which must keep their addresses until Test. In a longer list, each call
  // continues where the last call stopped, at `*next`, which the caller keeps for the list.
  template <typename T>
  void AddList(std::vector<T>* items, size_t* next) {
    const size_t count = std::min(items->size(), kListed);
    const size_t first = items->size() == count ? 0 : *next % items->size();
    *next = first + count;
    for (size_t i = 0; i < count; ++i) {
      MpiRequest& request = (*items)[(first + i) % items->size()].request;
      if (request.over) {
        any_over_ = true;
      } else {
        requests_[count_] = &request;
        handles_[count_++] = request.handle;
      }
    }
  }
  // Marks the requests that have completed. False: no added request is over.
  bool Test(const MpiLibrary& mpi) {
    MpiLibrary::Tested completed[MpiLibrary::kMaxTested];
    const int done = count_ == 0 ? 0 : mpi.TestSome({handles_, count_}, completed);
    for (int i = 0; i < done; ++i) {
      MpiRequest& request = *requests_[completed[i].index];
      request.over = true;
      request.error = completed[i].error;
    }
    return done > 0 || any_over_;
  }

 private:
  // A batch has room for three lists (MpiTransport::PollRequests).
  static constexpr size_t kListed = MpiLibrary::kMaxTested / 3;

  MpiRequest* requests_[MpiLibrary::kMaxTested];
  MpiHandle handles_[MpiLibrary::kMaxTested];
  size_t count_ = 0;
  bool any_over_ = false;
};

// Removes each item whose request is over, and then calls `end(item)`, which may add and remove items. The order of the
// items does not matter.
template <typename T, typename F>
void TakeCompleted(std::vector<T>* items, const F& end) {
  for (size_t i = 0; i < items->size();) {
    if (!(*items)[i].request.over) {
      ++i;
      continue;
    }
    T item = std::move((*items)[i]);
    if (i + 1 != items->size()) (*items)[i] = std::move(items->back());
    items->pop_back();
    end(std::move(item));
  }
}

}  // namespace jaxccomp
