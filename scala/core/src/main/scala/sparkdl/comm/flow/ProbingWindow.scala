// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

/**
 * Window that knows the base latency of its path: the least time that a chunk took, less its
 * transfer time.
 *
 * A path may become longer, and that must not look like a queue forever. So the base is measured
 * again [[ProbingWindow.HorizonNanos]] after it was found, by a chunk that is alone in flight. If a
 * pause spoils that measurement, the next chunks correct it.
 */
private[flow] abstract class ProbingWindow extends Window {
  import ProbingWindow._

  // The chunk with the least latency: its nanoseconds, its bytes and its arrival. Then the greatest
  // rate since that arrival.
  private var baseNanos = Double.PositiveInfinity
  private var baseBytes = 0
  private var foundAt = 0L
  private var fastestRate = 0.0

  /** Return true if the base is unknown or too old. */
  private def isBaseStale(now: Long): Boolean = baseNanos.isInfinite || now - foundAt > HorizonNanos

  /** Time after which anything in flight belongs to slow peers, and does not disturb a probe. */
  private def drainedAt: Long =
    if (baseNanos.isInfinite) Long.MaxValue else lastSend + PauseNanos + (4 * baseNanos).toLong

  override def hasRoom(bytes: Int, now: Long): Boolean =
    if (isBaseStale(now)) inFlight == 0 || now >= drainedAt else super.hasRoom(bytes, now)

  override def wakeAt(now: Long): Option[Long] =
    if (inFlight > 0 && isBaseStale(now) && !baseNanos.isInfinite) Some(drainedAt) else None

  /**
   * Record a chunk that arrives now, `latency` nanoseconds after it was sent.
   *
   * @return true if it was a probe, alone in flight: then it says nothing about the rate
   */
  protected def recordLatency(flight: Flight, latency: Double, now: Long): Boolean = {
    val wasStale = isBaseStale(now)
    if (latency <= baseNanos || wasStale && isBaseStale(flight.sent) && isLast(flight)) {
      baseNanos = latency
      baseBytes = flight.bytes
      foundAt = now
      fastestRate = 0
    }
    wasStale
  }

  /**
   * Return the base latency of the path in nanoseconds, without transfer time.
   *
   * @param rate current estimate, in bytes per nanosecond
   */
  protected def pathLatency(rate: Double): Double = {
    fastestRate = math.max(fastestRate, rate)
    math.max(0, baseNanos - baseBytes / fastestRate)
  }
}

private[flow] object ProbingWindow {

  /** Nanoseconds for which a base is valid. Measuring it again takes two round trips. */
  val HorizonNanos: Long = 10L * 1000 * 1000 * 1000

  /** Nanoseconds that, with four times the base added, only a chunk of a slow peer exceeds. */
  val PauseNanos: Long = 50L * 1000 * 1000
}
