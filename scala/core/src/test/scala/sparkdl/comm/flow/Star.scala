// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import scala.collection.mutable

/**
 * Executors with cables to a switch, which forwards packets in the order of arrival. Confirmations
 * queue with all other packets.
 *
 * @param rate bytes per second of every cable
 */
final class Star(val rate: Double, roundTrip: Long, executors: Int) {
  import Star._

  val simulation = new Simulation
  val uplinks: IndexedSeq[Link] =
    IndexedSeq.fill(executors)(new Link(simulation, rate, roundTrip / 2))
  val downlinks: IndexedSeq[Link] = IndexedSeq.fill(executors)(new Link(simulation, rate, 0))
  private val schedulers = IndexedSeq.fill(executors)(new TransferScheduler)
  private val completions = mutable.Map.empty[SendRequest, () => Unit]
  private val missing = mutable.Map.empty[SendRequest, Int]
  private val wakes = Array.fill(executors)(-1L)
  private var received = 0L

  def inFlight: Long = schedulers.map(_.inFlight).sum

  def send(
      from: Int,
      to: Int,
      bytes: Int,
      urgency: Urgency = Urgency(0, 0)
  )(onArrival: => Unit): Unit = {
    val turn = Math.floorMod(to - from, executors)
    val block = new SendRequest("block", to.toString, bytes.toLong, urgency, turn)
    completions(block) = () => onArrival
    missing(block) = bytes
    schedulers(from).add(block)
    pump(from)
  }

  /** Send two blocks, and another one whenever one has arrived. */
  def sendAlways(from: Int, to: Int, bytes: Int): Unit = {
    def another(): Unit = send(from, to, bytes)(another())
    (1 to 2).foreach(_ => another())
  }

  /** Run for so many seconds, and return the bytes that executors receive. */
  def received(seconds: Double): Double = {
    val (before, begin) = (received, simulation.now)
    simulation.run(begin + (seconds * 1e9).toLong)
    (received - before).toDouble
  }

  private def pump(from: Int): Unit = {
    val scheduler = schedulers(from)
    scheduler.next(simulation.now).foreach(carryOut(from, _))
    scheduler.wakeAt(simulation.now).filter(_ != wakes(from)).foreach { at =>
      wakes(from) = at
      simulation.after(at - simulation.now)(pump(from))
    }
  }

  private def carryOut(from: Int, request: ChunkRequest): Unit = {
    val to = request.block.peer.toInt
    val packets = (request.bytes + Packet - 1) / Packet
    (1 to packets).foreach { packet =>
      val size = if (packet < packets) Packet else request.bytes - (packets - 1) * Packet
      pass(from, to, size) {
        received += size
        if (packet == packets) {
          val there = simulation.now
          pass(to, from, Confirmation) {
            schedulers(from).recordArrival(request, simulation.now, Some(there - to))
            pump(from)
          }
          recordArrival(request)
        }
      }
    }
  }

  private def pass(from: Int, to: Int, bytes: Int)(there: => Unit): Unit =
    uplinks(from).send((), bytes)(downlinks(to).send((), bytes)(there))

  private def recordArrival(request: ChunkRequest): Unit = {
    val block = request.block
    missing(block) -= request.bytes
    if (missing(block) == 0) {
      missing -= block
      completions.remove(block).get()
    }
  }
}

private object Star {
  private val Packet = 1500
  private val Confirmation = 100
}
