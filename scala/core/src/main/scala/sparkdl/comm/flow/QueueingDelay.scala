package sparkdl.comm.flow

/**
 * Queueing delay of what a peer reports: latency above the minimum seen for this peer. The peer's clock has another
 * origin, so only differences between latencies are known. The minimum is that of the last [[QueueingDelay.HorizonNanos]] to
 * twice that, because clocks drift apart. A report much older than the newest one means that the peer's clock was set
 * back, for example by a reboot. Then the estimate starts over.
 */
private[flow] final class QueueingDelay {
  private var periodBegin = Long.MinValue
  private var leastLatency = Long.MaxValue
  private var leastLatencyBefore = Long.MaxValue
  private var newestReport = Long.MinValue // newest report, by the peer's clock

  /**
   * Record a report that arrives now, and return its queueing delay in nanoseconds.
   *
   * @param peerTime time of the report by the peer's clock
   * @param now time of arrival by this executor's clock
   */
  def record(peerTime: Long, now: Long): Long = {
    if (periodBegin == Long.MinValue || newestReport - peerTime > QueueingDelay.DisorderNanos) {
      periodBegin = now
      leastLatency = Long.MaxValue
      leastLatencyBefore = Long.MaxValue
      newestReport = peerTime
    }
    newestReport = math.max(newestReport, peerTime)
    if (now - periodBegin > QueueingDelay.HorizonNanos) {
      periodBegin = now
      leastLatencyBefore = leastLatency
      leastLatency = Long.MaxValue
    }
    leastLatency = math.min(leastLatency, now - peerTime)
    now - peerTime - math.min(leastLatency, leastLatencyBefore)
  }
}

private[flow] object QueueingDelay {

  /** Nanoseconds in which two machines' clocks drift apart by less than queueing delays. */
  val HorizonNanos: Long = 10L * 1000 * 1000 * 1000

  /** Nanoseconds by which a peer's reports may arrive out of order, over several connections. */
  val DisorderNanos: Long = 100L * 1000 * 1000
}
