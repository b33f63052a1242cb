// The places of calls in their callers' streams: an event says that the stream has come there, and where a
// call holds its stream, that waits there for a word of mapped memory.
//
// A word counts up, and never down: who waits for an earlier number is not held up by a later one.
// So word and event serve the next call at once, whether or not the stream has passed.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "cuda/host/api.h"
#include "cuda/host/mapped_words.h"

namespace jaxccomp::cuda {

class StreamGates {
 public:
  StreamGates(CudaApi* api, MappedWords* words, std::string device)
      : api_(api), words_(words), device_(std::move(device)) {}

  // What so many calls at a time need.
  Status Reserve(size_t calls);
  Result<uint64_t> Enter(CUstream_st* stream, bool holds);
  // CUDA's verdict on the event.
  int Query(uint64_t call);
  void Leave(uint64_t call);
  // By any thread, beside the others.
  void LetPass(uint64_t call);

 private:
  struct StreamGate {
    CUevent_st* event = nullptr;
    uint32_t* word = nullptr;
    uint32_t passed = 0;   // the word's value
    bool holds = false;
    bool reached = false;
  };
  Status Failed(const char* what, int error) const;
  Status Make(StreamGate* gate);
  Status Place(StreamGate* gate, CUstream_st* stream);

  CudaApi* const api_;
  MappedWords* const words_;
  const std::string device_;
  std::mutex mutex_;   // between LetPass and those that change `entered_`
  std::unordered_map<uint64_t, StreamGate> entered_;
  std::vector<StreamGate> free_;
  uint64_t next_ = 1;
};

}  // namespace jaxccomp::cuda
