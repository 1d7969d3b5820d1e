package sparkdl.comm.flow

/**
 * Queueing delay of what a peer reports: latency above the minimum seen for this peer. The peer's clock has another
 * origin, so only differences between latencies are known. The minimum is that of the last [[Lateness.Horizon]] to
 * twice that, because clocks drift apart. A report much older than the newest one means that the peer's clock was set
 * back, for example by a reboot. Then the estimate starts over.
 */
private[flow] final class Lateness {
  private var begin = Long.MinValue
  private var best = Long.MaxValue
  private var before = Long.MaxValue
  private var latest = Long.MinValue // newest report, by the peer's clock

  /**
   * Record a report that arrives now, and return its queueing delay in nanoseconds.
   *
   * @param said time of the report by the peer's clock
   * @param now time of arrival by this executor's clock
   */
  def of(said: Long, now: Long): Long = {
    if (begin == Long.MinValue || latest - said > Lateness.Disorder) {
      begin = now
      best = Long.MaxValue
      before = Long.MaxValue
      latest = said
    }
    latest = math.max(latest, said)
    if (now - begin > Lateness.Horizon) {
      begin = now
      before = best
      best = Long.MaxValue
    }
    best = math.min(best, now - said)
    now - said - math.min(best, before)
  }
}

private[flow] object Lateness {

  /** Nanoseconds in which two machines' clocks drift apart by less than queueing delays. */
  val Horizon: Long = 10L * 1000 * 1000 * 1000

  /** Nanoseconds by which a peer's reports may arrive out of order, over several connections. */
  val Disorder: Long = 100L * 1000 * 1000
}
