// Finds the processes that have fallen silent: stopped, cut off from the network, or on a host that is off.
// A connection tells of none of these for minutes.
//
// Each process sends a message to some others so often, and gives up those that do the same for it when
// nothing at all has come from them in time. Who sends to whom is the pattern of a dissemination barrier among
// those that live, so each is watched by about log2 of them, whoever else is lost.
//
// A process that was itself away (stopped, or suspended with its machine) gives nobody up for that.
#pragma once

#include <chrono>
#include <vector>

#include "transport/control_channel.h"

namespace jaxccomp {

class Keepalive {
 public:
  using Clock = std::chrono::steady_clock;

  // `timeout` of zero: nobody is watched.
  Keepalive(ControlChannel* channel, int process, std::chrono::milliseconds timeout)
      : channel_(*channel), process_(process), timeout_(timeout) {
    Grow();
  }

  bool on() const { return timeout_.count() > 0; }
  // How often Poll must be called.
  std::chrono::milliseconds interval() const { return timeout_ / 5; }
  // The channel has processes that it had not.
  void Grow();
  void OnHeard(int process) {
    if (on()) peers_[static_cast<size_t>(process)] = {.heard = Clock::now(), .has_spoken = true};
  }
  // Whether it is certain that a process whose connection has broken has ended: it had been heard a moment
  // before. Otherwise it may live where it cannot be reached.
  bool HasEnded(int process) const {
    return !on() || Clock::now() - peers_[static_cast<size_t>(process)].heard < timeout_ / 2;
  }
  // Tells others that this process lives, and the channel whom it has lost.
  void Poll();

 private:
  // So long one may take that has not said anything yet.
  static constexpr auto kFirstWord = std::chrono::seconds(30);

  struct Peer {
    Clock::time_point heard{};
    bool has_spoken = false;
  };

  void GiveUpIfSilent(int process, Clock::time_point now);

  ControlChannel& channel_;
  const int process_;
  const std::chrono::milliseconds timeout_;
  std::vector<Peer> peers_;
  Clock::time_point polled_ = Clock::now();
};

}  // namespace jaxccomp
