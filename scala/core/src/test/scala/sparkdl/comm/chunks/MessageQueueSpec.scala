package sparkdl.comm.chunks

import io.netty.channel.embedded.EmbeddedChannel
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.network.protocol.OneWayMessage

import sparkdl.comm.transport.PeerMessages

class MessageQueueSpec extends AnyFunSuite {
  private def batches(channel: EmbeddedChannel): Seq[Seq[Int]] = {
    channel.runPendingTasks()
    Iterator.continually(channel.readOutbound[OneWayMessage]()).takeWhile(_ != null).toVector.map { sent =>
      Wire.decode(sent.body.nioByteBuffer()) match {
        case Wire.Batch(messages) => messages.map(_.remaining)
        case other => fail(s"$other")
      }
    }
  }

  test("messages that wait travel together, as many as one message may have, and one that need not wait goes at once") {
    val queue = new MessageQueue
    val sizes = Seq(1, 2, 3, PeerMessages.MaxBytes - 100, 50, 200)
    sizes.foreach(size => queue.add(new Array[Byte](size), _ => ()))
    val channel = new EmbeddedChannel
    queue.opened(channel)
    assert(batches(channel) === Seq(Seq(1, 2, 3, PeerMessages.MaxBytes - 100, 50), Seq(200)))
    queue.add(new Array[Byte](7), _ => ())
    assert(batches(channel) === Seq(Seq(7)))
    channel.close()
  }

  test("whoever sent a message learns when the peer has it, or that there is no connection any more") {
    val queue = new MessageQueue
    var known = Vector.empty[(Int, Boolean)]
    def add(number: Int): Unit = queue.add(Array(number.toByte), arrived => known :+= number -> arrived)
    (1 to 3).foreach(add)
    assert(!queue.confirm(4) && !queue.confirm(-1) && known.isEmpty, "there are not so many")
    assert(queue.confirm(2) && known === Vector(1 -> true, 2 -> true))
    assert(!queue.confirm(1), "it has more already")
    assert(queue.confirm(2) && known.size === 2)
    add(4)
    queue.end()
    add(5)
    assert(known.drop(2) === Vector(3 -> false, 4 -> false, 5 -> false))
    assert(!queue.confirm(3))
  }
}
