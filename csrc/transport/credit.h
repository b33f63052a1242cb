// Flow control by credit for small messages between two processes.
//
// The receiver grants the sender a limit of bytes and messages that no operation has taken yet. The sender spends
// credit on each message that it sends without a request of the receiver. When an operation has taken the message, the
// receiver owes the credit. The receiver returns owed credit in bulk: with its next message to the sender, or in a
// message of its own when half of the limit is owed. A Credit counts both directions between two processes, and sends
// no messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace jaxccomp {

class Credit {
 public:
  struct Amount {
    int64_t bytes = 0;
    int64_t messages = 0;
    friend bool operator==(const Amount&, const Amount&) = default;
  };

  // The limit per process. Above kProcesses processes it shrinks, so that the total over all processes stays the same.
  static constexpr int kProcesses = 64;
  static Amount Share(Amount granted, int processes) {
    auto share = [processes](int64_t whole) {
      return processes <= kProcesses ? whole : whole * kProcesses / processes;
    };
    // At least one message, unless none is granted.
    return {share(granted.bytes),
            granted.messages > 0 ? std::max<int64_t>(share(granted.messages), 1) : 0};
  }

  void Grant(Amount limit) { limit_ = limit; }

  // ---- As the sender. Whether a message of `bytes` may be sent now without a request of the receiver.
  bool Covers(int64_t bytes) const {
    return spent_.messages < limit_.messages && spent_.bytes + bytes <= limit_.bytes;
  }
  void Spend(int64_t bytes) {
    ++spent_.messages;
    spent_.bytes += bytes;
  }
  // The receiver returns credit. False: it returns more than was spent.
  bool Replenish(Amount returned) {
    if (returned.bytes < 0 || returned.messages < 0 || returned.bytes > spent_.bytes ||
        returned.messages > spent_.messages) {
      return false;
    }
    spent_.bytes -= returned.bytes;
    spent_.messages -= returned.messages;
    return true;
  }
  Amount spent() const { return spent_; }

  // ---- As the receiver. Take: a message has been taken, so its credit is owed. Keep: the runtime stores the message
  // that is being delivered as unexpected; this cancels out the Take at the end of the delivery.
  void Take(int64_t bytes) {
    ++owed_.messages;
    owed_.bytes += bytes;
  }
  void Keep(int64_t bytes) {
    --owed_.messages;
    owed_.bytes -= bytes;
  }
  // Whether the owed credit is worth a message of its own.
  bool IsDue() const {
    return (owed_.messages > 0 && 2 * owed_.messages >= limit_.messages) ||
           (owed_.bytes > 0 && 2 * owed_.bytes >= limit_.bytes);
  }
  // Returns the owed credit, and sets it to zero. Between a Keep and its Take, owed_ may be negative: then nothing is
  // returned.
  Amount TakeOwed() {
    if (owed_.messages <= 0 || owed_.bytes < 0) return {};
    const Amount all = owed_;
    owed_ = {};
    return all;
  }

 private:
  Amount limit_, spent_, owed_;
};

// Credit of large payloads, in bytes only. The receiver checks that the sender does not exceed it, because the payloads
// may use the receiver's memory.
class PayloadCredit {
 public:
  explicit PayloadCredit(int64_t granted_bytes) : granted_bytes_(granted_bytes), left_bytes_(granted_bytes) {}

  // ---- As the sender. Whether a payload may be sent without a request: now (Covers), or ever (MayCover).
  bool Covers(int64_t bytes) const { return bytes <= left_bytes_; }
  bool MayCover(int64_t bytes) const { return bytes <= granted_bytes_; }
  void Spend(int64_t bytes) { left_bytes_ -= bytes; }
  // The receiver returns credit. False: it returns more than was spent.
  bool Replenish(int64_t bytes) {
    if (bytes <= 0 || bytes > granted_bytes_ - left_bytes_) return false;
    left_bytes_ += bytes;
    return true;
  }

  // ---- As the receiver. A payload was sent on credit. False: the sender exceeds its limit.
  bool Use(int64_t bytes) {
    if (bytes > granted_bytes_ - used_bytes_) return false;
    used_bytes_ += bytes;
    return true;
  }
  // A payload needs no memory of the transport, or no longer does. Returns the credit to send back now: 0 until 1/16 of
  // the limit is owed.
  int64_t Return(int64_t bytes) {
    constexpr int64_t kPortions = 16;   // few messages, and the sender gets credit long before it runs out
    owed_bytes_ += bytes;
    if (owed_bytes_ < granted_bytes_ / kPortions) return 0;
    used_bytes_ -= owed_bytes_;
    return std::exchange(owed_bytes_, 0);
  }

 private:
  int64_t granted_bytes_;
  int64_t left_bytes_;       // sender: credit left
  int64_t used_bytes_ = 0;   // receiver: bytes sent on credit that has not been returned
  int64_t owed_bytes_ = 0;   // receiver: the part of used_bytes_ that will be returned
};

}  // namespace jaxccomp
