package sparkdl.comm.flow

/**
 * A block or message that is to be sent. It stands for one wish: two ranks that ask for the same bytes make two of them.
 *
 * @param name for messages
 * @param peer the executor at the other end; what is in flight is counted for each
 * @param bytes of all of it, at least 1
 * @param turn
 *   among blocks that are as urgent: how far the rank at the other end comes after the rank here, from 0. Then ranks that
 *   send the same things at the same time begin with different peers
 */
private[comm] class Wanted(
    val name: String,
    val peer: String,
    val bytes: Long,
    val urgency: Urgency,
    val turn: Int
) {
  require(bytes > 0, s"block $name, peer $peer, has $bytes bytes: at least 1")
  override def toString: String = s"$name, $bytes bytes, peer $peer"
}

/**
 * The smaller, the more urgent: first by `phase`, then by `order`.
 *
 * @param phase a number of [[PhaseNumbers]]
 * @param order within the phase
 */
private[comm] final case class Urgency(phase: Long, order: Int) extends Ordered[Urgency] {
  override def compare(that: Urgency): Int =
    if (phase != that.phase) java.lang.Long.compare(phase, that.phase) else Integer.compare(order, that.order)
}

/** Transfer so many bytes of a block, from `offset` on. */
private[comm] final class Request private[flow] (val block: Wanted, val offset: Long, val bytes: Int) {

  /** In the window of its peer, and in the one of all peers unless that was given back. */
  private[flow] var ofPeer: Flight = _
  private[flow] var ofAll: Option[Flight] = None

  override def toString: String = s"$bytes bytes at $offset of $block"
}
