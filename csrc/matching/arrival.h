// Messages that wait for their receive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "collective/schedule.h"
#include "transport/transport.h"
#include "transport/transport_router.h"

namespace jaxccomp {

// Holds the credit that a kept message uses at its sender (transport.h). The destructor releases it.
class HeldCredit {
 public:
  HeldCredit() = default;
  HeldCredit(TransportRouter* router, const Header& header, Announced announced) {
    if (header.type != MessageType::kData || announced.process >= 0 ||
        header.source_process == router->process()) {
      return;
    }
    router_ = router;
    process_ = header.source_process;
    bytes_ = header.payload_bytes;
    router_->Keep(process_, bytes_);
  }
  HeldCredit(HeldCredit&& other) noexcept
      : router_(std::exchange(other.router_, nullptr)),
        process_(other.process_),
        bytes_(other.bytes_) {}
  HeldCredit& operator=(HeldCredit&& other) noexcept {
    std::swap(router_, other.router_);
    std::swap(process_, other.process_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HeldCredit() {
    if (router_ != nullptr) router_->Release(process_, bytes_);
  }

 private:
  TransportRouter* router_ = nullptr;   // null: holds no credit
  int process_ = -1;
  int64_t bytes_ = 0;
};

// A message that came before its receive could start.
struct Arrival {
  Arrival(TransportRouter* router, const Header& of, std::span<const std::byte> bytes, Announced later)
      : header(of), payload(bytes.begin(), bytes.end()), announced(later), credit(router, of, later) {}

  Header header;
  std::vector<std::byte> payload;   // if it came with the header
  Announced announced;              // otherwise
  HeldCredit credit;
};

// A message that is being delivered. The payload is valid only during the call.
struct IncomingMessage {
  IncomingMessage(const Header& h, std::span<const std::byte> bytes, Announced later)
      : header(h), payload(bytes), announced(later) {}
  // Keep moves the message out of `arrival`.
  explicit IncomingMessage(Arrival& arrival)
      : header(arrival.header), payload(arrival.payload), announced(arrival.announced), kept(&arrival) {}

  // Returns the message for storage. Moves a message that was stored before, and copies the payload of any other. Call
  // it at most once. `header` stays valid.
  Arrival Keep(TransportRouter* router) const {
    return kept != nullptr ? std::move(*kept) : Arrival(router, header, payload, announced);
  }

  const Header& header;
  std::span<const std::byte> payload;   // if it came with the header
  Announced announced;                  // otherwise
  Arrival* kept = nullptr;
};

// The arrivals of one operation by the task that receives them, found in constant time.
class Arrivals {
 public:
  struct Entry {
    TaskId task;
    Arrival arrival;
  };

  // Returns false if the task already has an arrival.
  bool Put(TaskId task, Arrival arrival) {
    const auto index = static_cast<size_t>(task);
    if (place_.size() <= index) place_.resize(index + 1, 0);
    if (place_[index] != 0) return false;
    entries_.push_back({task, std::move(arrival)});
    place_[index] = static_cast<uint32_t>(entries_.size());
    return true;
  }
  // Returns null if the task has no arrival.
  const Arrival* Find(TaskId task) const {
    const auto index = static_cast<size_t>(task);
    return index >= place_.size() || place_[index] == 0 ? nullptr
                                                        : &entries_[place_[index] - 1].arrival;
  }
  // The task must have an arrival.
  Arrival Take(TaskId task) {
    const size_t place = std::exchange(place_[static_cast<size_t>(task)], 0) - 1;
    Arrival taken = std::move(entries_[place].arrival);
    if (place + 1 < entries_.size()) {
      entries_[place] = std::move(entries_.back());
      place_[static_cast<size_t>(entries_[place].task)] = static_cast<uint32_t>(place + 1);
    }
    entries_.pop_back();
    return taken;
  }
  const std::vector<Entry>& all() const { return entries_; }
  void Clear() {
    entries_.clear();
    place_.clear();
  }

 private:
  std::vector<Entry> entries_;
  std::vector<uint32_t> place_;   // by task: index in entries_ plus 1; 0: none
};

}  // namespace jaxccomp
