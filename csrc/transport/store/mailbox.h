// What a store transport has to send and what has come for it, between the engine and the threads that
// talk to the store. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace jaxccomp {

class Mailbox {
 public:
  // In place of a process: this one has come to its end, and waits so long for the others to. The
  // message is the number of milliseconds.
  static constexpr int kParting = -1;

  struct StoredMessage {
    int process = 0;
    std::string text;
  };

  // For who talks to the store. The next message to be put there; waits for it. Nothing once the
  // mailbox is closed.
  std::optional<StoredMessage> Take();
  // What was there for this process.
  void Deliver(std::string text);
  // The store can no longer be reached.
  void Fail(Status why);
  // All processes have come to their end, or nobody waits for that any more.
  void EndParting();

  // For the transport.
  void Post(int process, std::string text);
  std::vector<std::string> Collect();
  Status failure() const;
  bool HasParted() const;
  void Close();

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<StoredMessage> outgoing_;
  std::vector<std::string> incoming_;
  Status failure_;
  bool parted_ = false;
  bool closed_ = false;
};

}  // namespace jaxccomp
