// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

/**
 * Block or message to be sent. Each instance is one request: two ranks that ask for the same bytes
 * make two instances.
 *
 * @param name for logs and errors
 * @param peer the executor at the other end; bytes in flight are counted for each peer
 * @param bytes of the whole block, at least 1
 * @param turn rank of this block among equally urgent ones: how far the receiving rank comes after
 *    the sending rank, from 0. So ranks that send the same things at the same time begin with
 *    different peers
 */
private[comm] class SendRequest(
    val name: String,
    val peer: String,
    val bytes: Long,
    val urgency: Urgency,
    val turn: Int
) {
  require(bytes > 0, s"block $name for peer $peer has $bytes bytes: it needs at least 1")
  override def toString: String = s"$name, $bytes bytes, peer $peer"
}

/**
 * Priority of a block, first by `phase`, then by `order`. The smaller one is more urgent.
 *
 * @param phase a number of [[PhaseNumbers]]
 * @param order within the phase
 */
private[comm] final case class Urgency(phase: Long, order: Int) extends Ordered[Urgency] {
  override def compare(that: Urgency): Int =
    if (phase != that.phase) java.lang.Long.compare(phase, that.phase)
    else Integer.compare(order, that.order)
}

/**
 * Request to send `bytes` bytes of a block from `offset` on.
 *
 * @param peerFlight entry in the window of its peer
 * @param commonFlight entry in the common window, unless that was given back
 */
private[comm] final class ChunkRequest private[flow] (
    val block: SendRequest,
    val offset: Long,
    val bytes: Int,
    private[flow] val peerFlight: Flight,
    private[flow] var commonFlight: Option[Flight]
) {
  override def toString: String = s"$bytes bytes at $offset of $block"
}

/**
 * Priorities of one fit's phases: its pulls and pushes, which count from 0. A phase takes its
 * number from `next` when something of it is first sent, after all phases before it. So fits that
 * share `next` take turns, however many steps each has done.
 */
private[comm] final class PhaseNumbers(next: () => Long) {
  import PhaseNumbers._

  private var last = -1L
  private var numbers = Vector.empty[Long] // of the last phases

  def apply(phase: Long): Long = synchronized {
    last = math.max(last, phase - KeptPhases)
    while (last < phase) {
      last += 1
      numbers = (numbers :+ next()).takeRight(KeptPhases)
    }
    numbers(numbers.size - 1 - math.min(numbers.size - 1L, last - phase).toInt)
  }
}

private object PhaseNumbers {

  /** Phases whose numbers are kept. A rank transfers data of two phases at a time. */
  private val KeptPhases = 4
}
