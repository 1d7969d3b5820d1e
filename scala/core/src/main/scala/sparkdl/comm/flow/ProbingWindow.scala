package sparkdl.comm.flow

/**
 * Window that knows the base latency of its path: the least time that a chunk took, less its transfer time.
 *
 * A path may become longer, and that must not look like a queue forever. So the base is measured again
 * [[ProbingWindow.Horizon]] after it was found, by a chunk that is alone in flight. If a pause spoils that measurement,
 * the next chunks correct it.
 */
private[flow] abstract class ProbingWindow extends Window {
  import ProbingWindow._

  // The chunk with the least latency: its nanoseconds, its bytes and its arrival. Then the greatest rate since that
  // arrival.
  private var base = Double.PositiveInfinity
  private var baseBytes = 0
  private var foundAt = 0L
  private var fastest = 0.0

  /** Return true if the base is unknown or too old. */
  private def probing(now: Long): Boolean = base.isInfinite || now - foundAt > Horizon

  /** Time after which anything in flight belongs to slow peers, and does not disturb a probe. */
  private def drainedAt: Long =
    if (base.isInfinite) Long.MaxValue else lastSend + Pause + (4 * base).toLong

  override def hasRoom(bytes: Int, now: Long): Boolean =
    if (probing(now)) inFlight == 0 || now >= drainedAt else super.hasRoom(bytes, now)

  override def wakeAt(now: Long): Option[Long] =
    if (inFlight > 0 && probing(now) && !base.isInfinite) Some(drainedAt) else None

  /**
   * Record a chunk that arrives now, `latency` nanoseconds after it was sent.
   *
   * @return true if it was a probe, alone in flight: then it says nothing about the rate
   */
  protected def probed(flight: Flight, latency: Double, now: Long): Boolean = {
    val wasProbing = probing(now)
    if (latency <= base || wasProbing && probing(flight.sent) && isLast(flight)) {
      base = latency
      baseBytes = flight.bytes
      foundAt = now
      fastest = 0
    }
    wasProbing
  }

  /**
   * Return the base latency of the path in nanoseconds, without transfer time.
   *
   * @param rate current estimate, in bytes per nanosecond
   */
  protected def pathLatency(rate: Double): Double = {
    fastest = math.max(fastest, rate)
    math.max(0, base - baseBytes / fastest)
  }
}

private[flow] object ProbingWindow {

  /** Nanoseconds for which a base is valid. Measuring it again takes two round trips. */
  val Horizon: Long = 10L * 1000 * 1000 * 1000

  /** Nanoseconds that, with four times the base added, only a chunk of a slow peer exceeds. */
  val Pause: Long = 50L * 1000 * 1000
}
