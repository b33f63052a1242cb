// Failure detector. Finds silent processes: stopped, cut off from the network, or on a host that is off. A connection
// may report none of these for minutes.
//
// Each process watches the processes 1, 2, 4, ... places before it, as in a dissemination barrier. Lost processes are
// left out of the count, so about log2(n) processes watch each one. A process pings the watched processes at a fixed
// interval, and marks a process lost that has sent nothing within the timeout. The processes need not agree on which
// processes are lost.
//
// A process that was itself stopped (or suspended with its machine) restarts all timeouts when it continues.
#pragma once

#include <chrono>
#include <vector>

#include "transport/control_channel.h"

namespace jaxccomp {

class Keepalive {
 public:
  using Clock = std::chrono::steady_clock;

  // `timeout` zero: the keepalive is off.
  Keepalive(ControlChannel* channel, int process, std::chrono::milliseconds timeout)
      : channel_(*channel), process_(process), timeout_(timeout) {}

  bool on() const { return timeout_.count() > 0; }
  // The interval at which Poll must be called.
  std::chrono::milliseconds interval() const { return timeout_ / 5; }
  // Adds the channel's new processes.
  void Grow() { peers_.resize(static_cast<size_t>(channel_.processes())); }
  void OnHeard(int process) {
    if (!on()) return;
    Peer& peer = peers_[static_cast<size_t>(process)];
    peer.heard = Clock::now();
    peer.has_spoken = true;
  }
  // Handles a message of kAlive: answers a ping.
  void OnAlive(int process, bool is_question) const {
    if (is_question) Greet(process);
  }
  // Sends a sign of life: the answer to a ping, or an unsolicited message.
  void Greet(int process) const { channel_.SendControl(process, MessageType::kAlive, kAnswer, 0); }
  static bool IsQuestion(const Header& header) { return header.payload_tag == kQuestion; }
  // Pings the watched processes, and marks silent ones lost. Does nothing before the interval has passed.
  void Poll();

 private:
  static constexpr uint32_t kQuestion = 1, kAnswer = 2;
  // Minimum timeout of a process that has sent nothing yet.
  static constexpr auto kFirstWord = std::chrono::seconds(30);

  struct Peer {
    Clock::time_point heard{};
    Clock::time_point watched_since{};   // start of its timeout
    bool has_spoken = false;
  };

  void GiveUpIfSilent(int process, Clock::time_point now);

  ControlChannel& channel_;
  const int process_;
  const std::chrono::milliseconds timeout_;
  std::vector<Peer> peers_;
  std::vector<int> watched_;
  Clock::time_point polled_ = Clock::now();
};

}  // namespace jaxccomp
