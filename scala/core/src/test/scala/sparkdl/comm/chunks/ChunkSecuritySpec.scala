// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, TimeUnit}

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.network.TransportContext
import org.apache.spark.network.client.{StreamCallback, TransportClient}
import org.apache.spark.network.server.{NoOpRpcHandler, TransportServerBootstrap}

import sparkdl.comm.transport.{Chunk, ChunkFailure, ChunkPeer, MessagePart}

/** Tests of authentication and encryption. */
class ChunkSecuritySpec extends AnyFunSuite {
  import Nodes._

  private val Crypto = "spark.network.crypto.enabled" -> "true"
  private val NoFallback = "spark.network.crypto.saslFallback" -> "false"
  private val SaslEncryption = "spark.authenticate.enableSaslEncryption" -> "true"
  private val Ways = Seq[Seq[(String, String)]](Seq(), Seq(SaslEncryption), Seq(Crypto, NoFallback))

  private def node(secret: Option[String], settings: Seq[(String, String)]): TestNode = {
    val node = new TestNode(new TestTransport(secret, settings.toMap))
    node.transport.put("block", Text.getBytes("ISO-8859-1"))
    node
  }

  private val Text = "these are parameters of a model " * 1000
  private val Short = MessagePart(0, Array[Byte](1), 0, 1)
  private val Nobody = ChunkPeer("nobody", 1, "1")
  private val All = Chunk(1, "block", 0, Text.length)

  for (way <- Ways) {
    val name = way.headOption.fold("SASL")(_._1)

    test(
      s"peers with one secret can fetch, and only encrypted data is unreadable on the wire: $name"
    ) {
      val Seq(client, server) = Seq.fill(2)(node(Some("secret"), way))
      val tap = new Tap(server.node.address)
      try {
        assert(new TestFetch(client.node, tap.address, All, direct = true).bytes === Text.getBytes(
          "ISO-8859-1"
        ).toSeq)
        client.node.send(tap.address, Text.getBytes("ISO-8859-1"))(_ => ())
        server.receiver.next(server.receiver.messages)
        assert(tap.recordedText.length > 2 * Text.length)
        assert(tap.recordedText.contains(Text.take(100)) === way.isEmpty)
      } finally {
        tap.close()
        Seq(client, server).foreach(_.node.close())
      }
    }

    test(s"a peer with another secret is refused before any of its messages is read: $name") {
      val client = node(Some("guessed"), way)
      val server = node(Some("secret"), way)
      try {
        client.node.send(server.node.address, Array[Byte](1))(_ => ())
        val fetched = new TestFetch(client.node, server.node.address, All)
        assert(fetched.failure.get.isInstanceOf[ChunkFailure.PeerLost])
        assert(client.receiver.next(client.receiver.losses) === server.node.address)
        assert(server.transport.opened.get === 0 && server.receiver.messages.isEmpty)
      } finally Seq(client, server).foreach(_.node.close())
    }
  }

  /** Check that a stranger that uses Spark's protocol is refused. */
  private def stranger(secret: Option[String])(says: TransportClient => Unit): Unit = {
    val server = node(secret, Seq(Crypto, NoFallback))
    val context =
      new TransportContext(new TestTransport().transportConf, new NoOpRpcHandler, false, true)
    val factory = context.createClientFactory()
    try {
      val client = factory.createUnmanagedClient("127.0.0.1", server.node.address.port)
      says(client)
      val end = new CompletableFuture[Throwable]
      client.stream(
        Wire.request(All),
        new StreamCallback {
          override def onData(id: String, bytes: ByteBuffer): Unit =
            end.complete(new AssertionError("it got bytes"))
          override def onComplete(id: String): Unit = end.complete(new AssertionError("it got all"))
          override def onFailure(id: String, cause: Throwable): Unit = end.complete(cause)
        }
      )
      assert(end.get(30, TimeUnit.SECONDS).isInstanceOf[Exception])
      eventually("its connection is closed")(!client.getChannel.isOpen)
      assert(server.transport.opened.get === 0 && server.receiver.messages.isEmpty)
    } finally {
      factory.close()
      context.close()
      server.node.close()
    }
  }

  test("a request without authentication is refused, though Spark would pass it on")(
    stranger(Some("secret"))(_ => ())
  )

  test("a chunk is not looked up for a request without authentication")(stranger(Some("secret")) {
    client =>
      client.send(Wire.hello(Nobody))
      client.send(Wire.ask(1, All))
  })

  test("a chunk is not looked up for a request without a hello")(stranger(None)(_.send(Wire.ask(
    1,
    All
  ))))

  test("Spark's stream requests are refused, also after a hello")(
    stranger(None)(_.send(Wire.hello(Nobody)))
  )

  test("a confirmation of parts that were not sent ends the connection")(stranger(None) { client =>
    client.send(Wire.hello(Nobody))
    client.send(Wire.received(1, 0))
  })

  test("a hello without authentication does not help")(
    stranger(Some("secret"))(_.send(Wire.hello(Nobody)))
  )

  test("a connection without authentication must also begin with the hello")(stranger(None)(_ =>
    ()
  ))

  test("a hello of another version is refused")(stranger(None)(_.send(Wire.hello(
    Nobody,
    Wire.Version + 1
  ))))

  test("a malformed message ends the connection")(stranger(None) { client =>
    client.send(Wire.hello(Nobody))
    client.send(ByteBuffer.wrap(Array[Byte](2, 0, 0, 0)))
  })

  test("a part that does not fit the message with its number ends the connection")(stranger(None) {
    client =>
      client.send(Wire.hello(Nobody))
      client.send(Wire.batch(Seq(
        MessagePart(1, new Array(9), 0, 5),
        MessagePart(1, new Array(8), 0, 3)
      )))
  })

  test("a server that sends anything but confirmations loses its connection") {
    val lies =
      Seq(
        Wire.received(7, 0),
        Wire.received(-1, 0),
        Wire.batch(Seq(Short)),
        ByteBuffer.wrap(Array[Byte](9))
      )
    lies.foreach { lie =>
      val liar = new NoOpRpcHandler {
        override def receive(client: TransportClient, message: ByteBuffer): Unit =
          client.send(lie.duplicate)
      }
      val context = new TransportContext(new TestTransport().transportConf, liar)
      val server = context.createServer(
        "127.0.0.1",
        0,
        java.util.Collections.emptyList[TransportServerBootstrap]
      )
      val client = node(None, Nil)
      try {
        val peer = ChunkPeer("127.0.0.1", server.getPort, "1")
        val arrived = new CompletableFuture[Boolean]
        client.node.send(peer, Array[Byte](1))(time => arrived.complete(time.isDefined))
        assert(!arrived.get(30, TimeUnit.SECONDS))
        assert(client.receiver.next(client.receiver.losses) === peer)
      } finally {
        client.node.close()
        server.close()
        context.close()
      }
    }
  }

  test("messages before the hello are not delivered")(
    stranger(None)(_.send(Wire.batch(Seq(Short))))
  )
}
