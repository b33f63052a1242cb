// Writes the flight recorder to a file: at the first failure of this process, and whenever it receives SIGUSR1.
#pragma once

#include <string>
#include <string_view>
#include <thread>

#include "common/status.h"
#include "engine/engine_lock.h"
#include "engine/flight_recorder.h"
#include "transport/transport_router.h"

namespace jaxccomp {

class FlightWriter {
 public:
  FlightWriter(EngineLock* lock, const FlightRecorder* recorder, const TransportRouter* router)
      : lock_(*lock), recorder_(*recorder), router_(*router) {}
  ~FlightWriter();
  FlightWriter(const FlightWriter&) = delete;
  FlightWriter& operator=(const FlightWriter&) = delete;

  // From now on, writes flight-RANK.json in this folder, which it creates; removes such a file of an earlier run. Empty:
  // writes no file. The first call also handles SIGUSR1, in front of the program's or MPI's handler, which is still
  // called. With the engine's lock.
  Status SetFolder(const std::string& folder);
  // The first call starts to write the file. `why`: the failure. With the engine's lock.
  void OnFailure(std::string_view why);
  // Ends the thread, after it has written the file of a failure. Without the engine's lock.
  void Stop();

 private:
  Status Start();
  void Loop();
  void Notify() const;

  EngineLock& lock_;
  const FlightRecorder& recorder_;
  const TransportRouter& router_;
  std::string path_;               // of the file; empty: none is written
  std::string pending_;            // content that the thread will write
  bool has_failed_ = false;        // OnFailure was called
  bool handles_signal_ = false;    // this object gets SIGUSR1
  bool stops_ = false;
  // The thread sleeps on this eventfd, because a signal handler can write to a descriptor but cannot notify a condition
  // variable.
  int event_ = -1;
  std::thread thread_;
};

}  // namespace jaxccomp
