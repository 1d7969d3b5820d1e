package sparkdl.comm.chunks

import java.util.ArrayDeque

import scala.jdk.CollectionConverters._

/** What was sent over one connection, in its order, of which nothing says that the peer has it. */
private[chunks] final class Unconfirmed {
  private val sent = new ArrayDeque[Option[Long] => Unit]
  private var confirmed = 0L
  private var ended = false

  /**
   * Called in the order in which things are sent.
   *
   * @param done as [[sparkdl.comm.transport.PeerMessages]] has it
   * @return whether there is still a connection; if not, `done` is not called
   */
  def add(done: Option[Long] => Unit): Boolean = synchronized {
    if (!ended) sent.add(done)
    !ended
  }

  /**
   * The peer has so many of them; false if it cannot.
   *
   * @param time of that by the peer's clock
   */
  def confirm(total: Long, time: Long): Boolean = {
    val found = synchronized {
      val count = total - confirmed
      if (count < 0 || count > sent.size) None
      else {
        confirmed = total
        Some(Vector.fill(count.toInt)(sent.poll()))
      }
    }
    found.foreach(_.foreach(_(Some(time))))
    found.isDefined
  }

  /** There is no connection any more. */
  def end(): Unit = {
    val left = synchronized {
      ended = true
      val left = sent.asScala.toVector
      sent.clear()
      left
    }
    left.foreach(_(None))
  }
}
