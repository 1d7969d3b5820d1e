package sparkdl.comm.flow

/**
 * A window that knows how long the path is where nothing queues: the least time that a chunk took, less its transfer.
 *
 * A path may become longer, and that must not look like a queue for ever. So [[ProbingWindow.Horizon]] after the least time was
 * found it is measured again, by a chunk that is alone in flight. Should that meet a pause, the next ones correct it.
 */
private[flow] abstract class ProbingWindow extends Window {
  import ProbingWindow._

  // The chunk that took least: nanoseconds, bytes, when it came, and the greatest rate since then.
  private var base = Double.PositiveInfinity
  private var baseBytes = 0
  private var foundAt = 0L
  private var fastest = 0.0

  /** The base is not known, or too old. */
  private def probing(now: Long): Boolean = base.isInfinite || now - foundAt > Horizon

  /** When what is still in flight is of slow peers, and disturbs no chunk that is to be alone. */
  private def drainedAt: Long =
    if (base.isInfinite) Long.MaxValue else lastSend + Pause + (4 * base).toLong

  override def hasRoom(bytes: Int, now: Long): Boolean =
    if (probing(now)) inFlight == 0 || now >= drainedAt else super.hasRoom(bytes, now)

  override def wakeAt(now: Long): Option[Long] =
    if (inFlight > 0 && probing(now) && !base.isInfinite) Some(drainedAt) else None

  /**
   * What arrives now took so many nanoseconds.
   *
   * @return whether that was measured, alone in flight: it says nothing about the rate then
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

  /** Nanoseconds. @param rate bytes that come in a nanosecond, as it seems now */
  protected def pathLatency(rate: Double): Double = {
    fastest = math.max(fastest, rate)
    math.max(0, base - baseBytes / fastest)
  }
}

private[flow] object ProbingWindow {

  /** Nanoseconds for which a base is believed. To find it again takes two round trips. */
  val Horizon: Long = 10L * 1000 * 1000 * 1000

  /** Nanoseconds after which, with some times the base, a chunk comes from a peer that is slow. */
  val Pause: Long = 50L * 1000 * 1000
}
