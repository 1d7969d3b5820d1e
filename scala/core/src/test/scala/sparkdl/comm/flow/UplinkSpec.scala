package sparkdl.comm.flow

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

/** Messages of many sizes that an executor sends over connections that share its uplink, each in its turn. */
class UplinkSpec extends AnyFunSuite {
  private val Milli = 1000L * 1000
  private val Packet = 1500
  private val Largest = 60000

  /** @param rate bytes per second of every cable */
  private final class Uplink(val rate: Double, roundTrip: Long, peers: Int) {
    val simulation = new Simulation
    private val random = new Random(1)
    private val scheduler = TransferScheduler.ofUplink()
    private val uplink = new Link(simulation, rate, roundTrip / 2)
    val downlinks: IndexedSeq[Link] = IndexedSeq.fill(peers)(new Link(simulation, rate, 0))
    private val whenArrived = mutable.Map.empty[Wanted, () => Unit]
    private var wakes = -1L
    private var number = 0
    var received = 0L

    def send(peer: Int, bytes: Int, urgency: Urgency)(arrived: => Unit): Unit = {
      val message = new Wanted("message", peer.toString, bytes.toLong, urgency, peer, isWhole = true)
      whenArrived(message) = () => arrived
      scheduler.want(message)
      pump()
    }

    /** Has messages wait for each peer, now and always. */
    def fill(): Unit = for (peer <- 0 until peers; _ <- 1 to 200) another(peer)

    private def another(peer: Int): Unit = {
      number += 1
      send(peer, 100 + random.nextInt(Largest), Urgency(1, number))(another(peer))
    }

    private def pump(): Unit = {
      scheduler.next(simulation.now).foreach { request =>
        val peer = request.block.peer.toInt
        val packets = (request.bytes + Packet - 1) / Packet
        (1 to packets).foreach { packet =>
          val size = if (packet < packets) Packet else request.bytes - (packets - 1) * Packet
          uplink.send(peer, size)(downlinks(peer).send(0, size) {
            received += size
            if (packet == packets) simulation.after(roundTrip / 2) {
              if (scheduler.arrived(request, simulation.now)) whenArrived.remove(request.block).get()
              pump()
            }
          })
        }
      }
      scheduler.wakeAt(simulation.now).filter(_ != wakes).foreach { at =>
        wakes = at
        simulation.after(at - simulation.now)(pump())
      }
    }

    /** Bytes per second in the next so many seconds. */
    def goodput(seconds: Double): Double = {
      val (before, begin) = (received, simulation.now)
      simulation.run(begin + (seconds * 1e9).toLong)
      (received - before) / seconds
    }
  }

  test("of whatever link, most is used, and what is urgent waits for little") {
    for (mbits <- Seq(10, 27, 200, 1000); roundTrip <- Seq(200000L, 20 * Milli); peers <- Seq(1, 7)) {
      val network = new Uplink(mbits * 1e6 / 8, roundTrip, peers)
      network.fill()
      network.goodput(3)
      val goodput = network.goodput(4)
      val begun = network.simulation.now
      var took = 0L
      network.send(0, 1000, Urgency(0, 0)) { took = network.simulation.now - begun }
      network.goodput(2)
      withClue(s"$mbits Mbit/s, $roundTrip ns, $peers peers: ") {
        assert(goodput > 0.93 * network.rate)
        assert(took < roundTrip + 10 * Milli + 2.5 * Largest / network.rate * 1e9)
      }
    }
  }
}
